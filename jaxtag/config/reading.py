"""Flags and TOML to settings, settings to JSON and back; a command's mistakes as one line."""

from __future__ import annotations

import dataclasses
import difflib
import io
import itertools
import os
import sys
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from jaxtag.config.settings import MAX_FLOAT32, ConfigError, InputError

C = TypeVar("C")


def parse(config_class: type[C], argv: Sequence[str], *, prog: str, default: C | None = None) -> C:
    """Read a command's flags, on top of its ``--config FILE.toml``, or else of ``default``.

    ``config_class`` is a frozen dataclass: a field is a flag, one without a default an argument.
    Raises ``ConfigError`` for a mistake in the TOML file or a value out of range; any other
    mistake in the flags is printed with the nearest right flag and exits with status 2.
    """
    import tyro

    known = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    path = _config_flag(argv) if "config" in known else None
    base = default if path is None else load_toml(config_class, path)
    return tyro.cli(
        config_class,
        prog=f"python -m {prog}",
        args=list(argv),
        default=tyro.MISSING_NONPROP if base is None else base,
        config=(
            tyro.conf.PositionalRequiredArgs,
            tyro.conf.PositionalMetavarFromFieldName,
            tyro.conf.DisallowNone,
        ),
    )


def _config_flag(argv: Sequence[str]) -> Path | None:
    path = None
    for flag, following in itertools.pairwise([*argv, ""]):
        if flag == "--config" and not following.startswith("--"):
            path = Path(following)
        elif flag.startswith("--config="):
            path = Path(flag.removeprefix("--config="))
    if path == Path():
        raise ConfigError("--config: expected a TOML file, found an empty name; name the file")
    return path


def load_toml(config_class: type[C], path: Path) -> C:
    """Read a TOML file of settings, whose tables are the groups of flags."""
    try:
        text = path.read_bytes().decode("utf-8")
        settings = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a TOML file, found {error.strerror}; check the path"
        ) from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        raise ConfigError(f"{path}: expected TOML, found {error}") from error
    return from_dict(config_class, settings, source=f"{path}: ")


def from_dict(
    config_class: type[C], settings: Mapping[str, Any], *, source: str = "", table: str = ""
) -> C:
    """Make a dataclass of settings from a dict as TOML or JSON gives it.

    ``source`` begins every message, ``table`` is the dotted name of the group with its dot.
    Raises ``ConfigError`` for an unknown name, proposing the nearest known one, and for a value
    of another type.
    """
    hints = typing.get_type_hints(config_class)
    known = {
        f"{table}{field.name}".replace("_", "-"): field.name
        for field in dataclasses.fields(config_class)  # type: ignore[arg-type]
    }
    values = {}
    for key, value in settings.items():
        full = f"{table}{key}".replace("_", "-")
        if full not in known:
            raise ConfigError(f"{source}{full}: no such setting; {_nearest(full, known)}")
        if known[full] in values:
            raise ConfigError(f"{source}{full}: found twice; give it once")
        values[known[full]] = _convert(hints[known[full]], value, source, full)
    try:
        return config_class(**values)
    except ConfigError as error:
        raise ConfigError(f"{source}{str(error).removeprefix(source)}") from error


def _convert(kind: Any, value: Any, source: str, name: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, Mapping):
            return from_dict(typing.cast("type[Any]", kind), value, source=source, table=f"{name}.")
        expected = "a table of settings"
    elif origin is types.UnionType:  # X | None
        return None if value is None else _convert(arguments[0], value, source, name)
    elif origin is Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{source}{name}: found {value!r}; {_nearest(str(value), arguments)}")
    elif origin is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        expected = "a list of strings"
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind is float and isinstance(value, float):
        return value
    elif kind is float and type(value) is int and abs(value) <= MAX_FLOAT32:
        return float(value)
    elif kind in (int, bool, str) and type(value) is kind:
        return value
    else:
        names = {int: "a whole number", float: "a number", bool: "true or false"}
        expected = names.get(kind, "a string")
    raise ConfigError(f"{source}{name}: expected {expected}, found {value!r}")


def to_dict(config: Any) -> dict[str, Any]:
    """Turn settings into a dict for JSON, the inverse of ``from_dict``."""
    return {
        key: to_dict(value)
        if dataclasses.is_dataclass(value)
        else str(value)
        if isinstance(value, Path)
        else list(value)
        if isinstance(value, tuple)
        else value
        for key, value in ((f.name, getattr(config, f.name)) for f in dataclasses.fields(config))
    }


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    return f"perhaps {close[0]}?" if close else f"known: {', '.join(known)}"


def run_command(main: Callable[[Sequence[str]], None]) -> NoReturn:
    """Run a command on ``sys.argv``; a user's mistake is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a tag that the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        main(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        print(f"error: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
        os._exit(2)  # a full standard output would fail once more when Python flushes it
    sys.exit(0)
