"""A run directory: made fresh, marked, and never one that jaxtag did not make."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jaxtag
from jaxtag import checkpoint
from jaxtag.config import Config, InputError, from_dict, to_dict
from jaxtag.corpus import Layout
from jaxtag.encode import PARTS, Encoder
from jaxtag.labels import SCHEMES
from jaxtag.plan import Shape, ShapePlan

MARKER = ".jaxtag-run"
RECORD, LABELS, VOCABULARY = "run.json", "labels.json", "vocabulary.json"
MODEL, METRICS, RESULT, CHECKPOINTS = (
    "model.safetensors",
    "metrics.jsonl",
    "result.json",
    "checkpoints",
)


class RunError(InputError):
    """A directory that is no run, or that must not be written to."""


def check(config: Config) -> None:
    """Refuse a run directory that training would have to destroy; changes nothing.

    A directory that is not empty needs ``--resume`` or ``--overwrite`` and jaxtag's marker.
    """
    path = config.run
    try:
        _check_place(path, config)
    except (OSError, ValueError) as error:  # a name that cannot be one
        raise RunError(f"{path}: expected a directory for the run, found {error}") from error


def _check_place(path: Path | None, config: Config) -> None:
    if config.resume and config.overwrite:
        raise RunError("--resume and --overwrite exclude each other; give one of them")
    if path is None:
        if config.resume:
            raise RunError("--resume: expected --run DIRECTORY, the run to go on from, found none")
        return
    if not path.exists():
        return
    if not path.is_dir():
        raise RunError(f"{path}: expected a directory for the run, found a file; name another")
    if not any(path.iterdir()):
        return
    if not (path / MARKER).is_file():
        raise RunError(
            f"{path}: expected an empty directory or a jaxtag run, found other files; "
            "name another directory with --run"
        )
    if not (config.resume or config.overwrite):
        raise RunError(
            f"{path}: holds a run already; go on with --resume, replace it with --overwrite, "
            "or name another directory with --run"
        )
    inputs = (config.data.train, config.data.dev, config.data.test, config.config)
    for file in inputs:
        if config.overwrite and file is not None and file.resolve().is_relative_to(path.resolve()):
            raise RunError(
                f"{file}: expected the run's input outside of {path}, which --overwrite empties; "
                "move it, or name another directory with --run"
            )


def open_directory(config: Config, name: str) -> Path:
    """Make the run's directory, its marker first; by default the next free ``runs/NAME-N``."""
    check(config)
    try:
        if config.run is None:
            path = _next_free(Path("runs"), name)
        else:
            path = config.run
            path.mkdir(parents=True, exist_ok=True)
            if config.overwrite:
                _empty(path)
        (path / MARKER).touch()
    except OSError as error:
        raise RunError(f"{error.filename}: run directory not made: {error.strerror}") from error
    return path


def _next_free(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _empty(path: Path) -> None:
    # The marker goes last, so that an interrupted removal can be taken up again.
    for entry in sorted(path.iterdir(), key=lambda entry: entry.name == MARKER):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def write_record(path: Path, config: Config, layout: Layout, facts: Mapping[str, Any]) -> None:
    """Write ``run.json``: all settings as resolved, versions, command line and the facts given."""
    versions = {
        name: importlib.metadata.version(name)
        for name in ("jax", "jaxlib", "flax", "optax", "numpy")
    }
    record = {
        "jaxtag": jaxtag.__version__,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "git": _git_revision(),
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "config": to_dict(config),
        "layout": asdict(layout),
        **facts,
    }
    checkpoint.write_json(path / RECORD, record)


def read_record(path: Path) -> tuple[Config, Layout, ShapePlan]:
    """A run's settings, how its training corpus was laid out, and its batch shapes."""
    require(path)
    source = path / RECORD
    record = _table(source)
    try:
        settings, layout, shapes = record["config"], record["layout"], record["shapes"]
        known = Layout(**{**layout, "keys": tuple(layout["keys"])})
        planned = ShapePlan(tuple(Shape(int(s["length"]), int(s["rows"])) for s in shapes))
        lengths = [shape.length for shape in planned.shapes]
        if not lengths or sorted(set(lengths)) != lengths or lengths[0] < 1:
            raise ValueError("shapes whose lengths do not ascend from 1")
        if min(shape.rows for shape in planned.shapes) < 1:
            raise ValueError("a shape without rows")
        if not isinstance(settings, dict) or type(known.token_column) is not int:
            raise TypeError("config or layout of another type")
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{source}: expected the record of a run of jaxtag {jaxtag.__version__}, "
            f"found another ({error}); restore it or train anew"
        ) from error
    return from_dict(Config, settings, source=f"{source}: "), known, planned


def require_same_training(path: Path, config: Config, corpora: Mapping[str, Any]) -> None:
    """Raise ``RunError`` naming the first setting or corpus in which a resumed training differs."""
    old, new = _flat(to_dict(read_record(path)[0])), _flat(to_dict(config))
    free = {"config", "run", "resume", "overwrite", "train.log-steps"}
    for name in sorted(old.keys() - free):
        if old[name] != new[name]:
            raise RunError(
                f"--resume: {name} was {old[name]!r} in {path}, found {new[name]!r}; "
                "give the same settings, or start another run"
            )
    record = checkpoint.read_json(path / RECORD)
    if record.get("corpora") != corpora:
        raise RunError(
            f"--resume: the corpora are not those that {path} was trained on; "
            "give the same files, or start another run"
        )


def _flat(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        full = f"{table}{name}".replace("_", "-")
        flat |= _flat(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return flat


def require(path: Path) -> None:
    """Raise ``RunError`` where a path is no run directory."""
    try:
        kind = "a directory" if path.is_dir() else "a file" if path.exists() else "nothing"
    except (OSError, ValueError) as error:
        kind = str(error)
    if kind != "a directory":
        raise RunError(
            f"{path}: expected a run directory, found {kind}; "
            "name the directory that training printed"
        )
    if not (path / MARKER).is_file():
        raise RunError(
            f"{path}: expected a run directory, found no {MARKER} in it; "
            "name the directory that training printed"
        )


def write_encoder(path: Path, encoder: Encoder, scheme: str) -> None:
    """Write ``labels.json`` and ``vocabulary.json``: what ids mean."""
    checkpoint.write_json(path / LABELS, {"scheme": scheme, "labels": list(encoder.labels)})
    checkpoint.write_json(
        path / VOCABULARY,
        {"words": list(encoder.words), "kind": encoder.kind, "parts": list(encoder.parts)},
    )


def read_encoder(path: Path) -> tuple[Encoder, str]:
    """The encoder of a run and its tag scheme."""
    labels = _table(path / LABELS)
    vocabulary = _table(path / VOCABULARY)
    encoder = Encoder(
        words=_names(path / VOCABULARY, vocabulary, "words"),
        labels=_names(path / LABELS, labels, "labels"),
        kind=_choice(path / VOCABULARY, vocabulary, "kind", tuple(PARTS)),
        parts=_names(path / VOCABULARY, vocabulary, "parts"),
    )
    if not encoder.labels:
        raise RunError(f"{path / LABELS}: expected labels, found none; restore it or train anew")
    return encoder, _choice(path / LABELS, labels, "scheme", SCHEMES)


def _table(path: Path) -> dict[str, Any]:
    table = checkpoint.read_json(path)
    if not isinstance(table, dict):
        raise RunError(f"{path}: expected a JSON object, found another value; restore the file")
    return table


def _names(path: Path, table: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = table.get(key)
    strings = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not isinstance(names, list) or not strings or len(set(names)) != len(names):
        raise RunError(f"{path}: {key}: expected a list of distinct strings; restore the file")
    return tuple(names)


def _choice(path: Path, table: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    value = table.get(key)
    if value not in known:
        raise RunError(
            f"{path}: {key}: expected one of {', '.join(known)}, found {value!r}; restore the file"
        )
    return str(value)


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line, each written out at once."""

    def __init__(self, path: Path, *, keep_lines: int = 0) -> None:
        path.touch()
        self._file = path.open("r+b")
        self.lines = sum(1 for _ in itertools.islice(iter(self._file.readline, b""), keep_lines))
        # Lines of steps after the checkpoint will be written anew.
        self._file.truncate(self._file.tell())

    def write(self, **values: Any) -> None:
        """Append one line."""
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()
        self.lines += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _git_revision() -> str | None:
    """Revision of the checkout that this code runs from; None outside of one."""
    package = Path(jaxtag.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", os.fspath(package), *arguments],
                capture_output=True,
                text=True,
                timeout=10,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    # An installed package may lie inside somebody else's checkout, where it is not tracked.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision = git("rev-parse", "HEAD")
    return f"{revision}+changes" if git("status", "--porcelain", ".") else revision
