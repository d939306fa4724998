"""Flags and TOML in, frozen dataclasses out, JSON beside every run.

Nothing here imports jax or numpy, so that ``--help`` and a typing mistake are answered at once.
"""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

Format = Literal["auto", "conll", "conllu", "jsonl"]
Delimiter = Literal["auto", "tab", "space"]
Scheme = Literal["auto", "IO", "IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU", "plain"]
Parts = Literal["affixes", "characters", "none"]
ModelKind = Literal["bilstm", "transformer"]
PolicyName = Literal["float32", "bfloat16", "float16"]
Decay = Literal["linear", "cosine"]


MAX_FLOAT32 = 3.4028234663852886e38


class InputError(Exception):
    """A mistake in what the user gave: shown as one line, exit status 2."""


class ConfigError(InputError):
    """A setting that is unknown, of the wrong type, or contradicts another."""


@dataclass(frozen=True)
class DataConfig:
    """The corpus files, how they are read, and the shapes their batches get."""

    train: Path | None = None
    """Training corpus; without it, the made-up demo corpus."""
    dev: Path | None = None
    """Development corpus: chooses the best model and stops early."""
    test: Path | None = None
    """Test corpus: the best model is scored on it once, at the end."""
    format: Format = "auto"
    """conll (columns), conllu, jsonl; auto looks at the name and the content."""
    delimiter: Delimiter = "auto"
    """Column delimiter; auto takes the tab if any line has one."""
    token_column: str = "auto"
    """Column of the token, from 1 (-1 is the last); in CoNLL-U also a name."""
    tag_column: str = "auto"
    """Column of the tag, likewise (CoNLL-U: upos unless given)."""
    comment: str = "auto"
    """Lines that begin so are comments; auto: '#' lines without a delimiter, in 3+ columns."""
    scheme: Scheme = "auto"
    """Tag scheme; auto takes the one with the fewest malformed tags, plain for parts of speech."""
    labels: tuple[str, ...] = ()
    """Names of the tag ids of JSON lines, in order: O B-PER I-PER …"""
    encoding: str = "utf-8"
    """Character encoding of the files."""
    shapes: int = 4
    """How many padded lengths the batches may have; each costs one compile per program."""
    row_multiple: int = 8
    """Rows of every batch are a multiple of this; the number of devices must divide it."""

    def __post_init__(self) -> None:
        _between(1, 1_000, "data.shapes", self.shapes)
        _between(1, 2**16, "data.row-multiple", self.row_multiple)


@dataclass(frozen=True)
class ReadConfig:
    """How a file is read where that differs from the training corpus; unless given, as that was."""

    format: Format | None = None
    """auto, conll (columns), conllu or jsonl."""
    delimiter: Delimiter | None = None
    """auto, tab or space."""
    token_column: str | None = None
    """Column of the token, from 1 (-1 is the last); in CoNLL-U also a name."""
    tag_column: str | None = None
    """Column of the tag, likewise."""
    comment: str | None = None
    """Lines that begin so are comments."""
    encoding: str | None = None
    """Character encoding of the file."""

    def over(self, trained: DataConfig) -> DataConfig:
        """The settings of a training with those given here in their place."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(trained, **given)


@dataclass(frozen=True)
class EncodeConfig:
    """Tokens to ids."""

    min_count: int = 2
    """Words seen less often in the training file share the unknown id."""
    max_words: int = 30_000
    """Size of the vocabulary at most, the most frequent words first."""
    max_parts: int = 100_000
    """Likewise of the affixes or characters."""
    parts: Parts = "affixes"
    """What is seen inside a word: affixes and shape, its characters, or nothing."""

    def __post_init__(self) -> None:
        _between(1, 2**31 - 1, "encode.min-count", self.min_count)
        _between(0, 2**31 - 1, "encode.max-words", self.max_words)
        _between(0, 2**31 - 1, "encode.max-parts", self.max_parts)


@dataclass(frozen=True)
class ModelConfig:
    """The tagger's layers."""

    kind: ModelKind = "bilstm"
    """bilstm (recurrent) or transformer (attention)."""
    width: int = 128
    """Width of the embeddings and of a layer's output."""
    layers: int = 1
    """Number of layers."""
    heads: int = 4
    """Attention heads (transformer)."""
    feed_forward: int = 256
    """Width of the feed-forward layer (transformer)."""
    dropout: float = 0.3
    """Share of activations dropped in training."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "feed_forward"):
            _between(1, 2**16, f"model.{name.replace('_', '-')}", getattr(self, name))
        _within(0.0, 0.99, "model.dropout", self.dropout)
        if self.width % 2:
            raise ConfigError(
                f"model.width: expected an even number, for its two halves, found {self.width}"
            )
        if self.kind == "transformer" and self.width % self.heads:
            raise ConfigError(
                f"model.width: expected a multiple of model.heads, {self.heads}, found {self.width}"
            )


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    policy: PolicyName = "float32"
    """Type of the matrix products; parameters, norms, softmax and losses stay float32."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and the loop."""

    epochs: int = 15
    """Passes over the training corpus at most."""
    max_steps: int = 0
    """Optimizer steps at most; 0: as many as the epochs have."""
    seed: int = 0
    """Seeds parameters, dropout and the order of the data."""
    lr: float = 2e-3
    """Peak learning rate."""
    batch_tokens: int = 512
    """Cells (rows × padded length) of a batch at most, where the row multiple allows."""
    accumulate: int = 1
    """Micro-batches whose gradients are added up before one optimizer step."""
    warmup: float = 0.05
    """Share of all steps over which the learning rate rises from 0."""
    decay: Decay = "linear"
    """How the learning rate falls to 0 after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's decay of matrices; biases, norms and embeddings are spared."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0: never."""
    label_smoothing: float = 0.0
    """Share of the target spread evenly over all classes."""
    class_weights: tuple[str, ...] = ()
    """Weights of tags other than 1, as O=0.5 B-PER=2."""
    patience: int = 5
    """Stop after this many evaluations without a better development score; 0: never."""
    eval_steps: int = 0
    """Evaluate every so many steps; 0: after each epoch."""
    log_steps: int = 20
    """Steps between two lines of metrics.jsonl."""

    def __post_init__(self) -> None:
        _between(1, 2**26, "train.batch-tokens", self.batch_tokens)
        for name in ("epochs", "accumulate", "log_steps"):
            _between(1, 2**31 - 1, f"train.{name.replace('_', '-')}", getattr(self, name))
        for name in ("max_steps", "patience", "eval_steps"):
            _between(0, 2**31 - 1, f"train.{name.replace('_', '-')}", getattr(self, name))
        _between(0, 2**32 - 1, "train.seed", self.seed)  # jax would take the last 32 bits of more
        for name in ("lr", "weight_decay", "clip_norm"):
            _within(0.0, MAX_FLOAT32, f"train.{name.replace('_', '-')}", getattr(self, name))
        _within(0.0, 1.0, "train.warmup", self.warmup)
        _within(0.0, 1.0, "train.label-smoothing", self.label_smoothing)


@dataclass(frozen=True)
class Config:
    """Train a token tagger: python -m jaxtag.train --data.train FILE --data.dev FILE."""

    data: DataConfig = field(default_factory=DataConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    config: Path | None = None
    """TOML file of these settings; flags win over it."""
    run: Path | None = None
    """Run directory; by default a fresh runs/NAME-N."""
    resume: bool = False
    """Go on from the run directory's last finished epoch, or from nothing."""
    overwrite: bool = False
    """Empty the run directory first, if it is one that jaxtag made."""


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


def _between(low: int, high: int, name: str, value: int) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{name}: expected a whole number from {low:,} to {high:,}, found {value:,}"
        )


def _within(low: float, high: float, name: str, value: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected a number from {low:g} to {high:g}, found {value:g}")


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
