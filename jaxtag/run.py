"""A run directory: made fresh, marked, and never one that jaxtag did not make."""

from __future__ import annotations

import importlib.metadata
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
from jaxtag.encode import Encoder

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


def read_record(path: Path) -> tuple[Config, Layout]:
    """The settings that a run was trained with, and how its training corpus was laid out."""
    require(path)
    source = path / RECORD
    record = checkpoint.read_json(source)
    try:
        layout = Layout(**{**record["layout"], "keys": tuple(record["layout"]["keys"])})
        settings = record["config"]
    except (KeyError, TypeError) as error:
        raise RunError(f"{source}: expected config and layout, found no {error}") from error
    return from_dict(Config, settings, source=f"{source}: "), layout


def require_same_training(path: Path, config: Config) -> None:
    """Raise ``RunError`` naming the first setting in which a resumed training differs."""
    old, new = _flat(to_dict(read_record(path)[0])), _flat(to_dict(config))
    free = {"config", "run", "resume", "overwrite", "train.log-steps"}
    for name in sorted(old.keys() - free):
        if old[name] != new[name]:
            raise RunError(
                f"--resume: {name} was {old[name]!r} in {path}, found {new[name]!r}; "
                "give the same settings, or start another run"
            )


def _flat(settings: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        full = f"{table}{name}".replace("_", "-")
        flat |= _flat(value, f"{full}.") if isinstance(value, dict) else {full: value}
    return flat


def require(path: Path) -> None:
    """Raise ``RunError`` where a path is no run directory."""
    if not path.is_dir():
        raise RunError(f"{path}: expected a run directory, found {_kind(path)}")
    if not (path / MARKER).is_file():
        raise RunError(f"{path}: expected a run directory, found no {MARKER} in it")


def _kind(path: Path) -> str:
    return "a file" if path.exists() else "nothing"


def write_encoder(path: Path, encoder: Encoder, scheme: str) -> None:
    """Write ``labels.json`` and ``vocabulary.json``: what ids mean."""
    checkpoint.write_json(path / LABELS, {"scheme": scheme, "labels": list(encoder.labels)})
    checkpoint.write_json(
        path / VOCABULARY,
        {"words": list(encoder.words), "kind": encoder.kind, "parts": list(encoder.parts)},
    )


def read_encoder(path: Path) -> tuple[Encoder, str]:
    """The encoder of a run and its tag scheme."""
    labels = checkpoint.read_json(path / LABELS)
    vocabulary = checkpoint.read_json(path / VOCABULARY)
    try:
        encoder = Encoder(
            words=tuple(vocabulary["words"]),
            labels=tuple(labels["labels"]),
            kind=str(vocabulary["kind"]),
            parts=tuple(vocabulary["parts"]),
        )
        return encoder, str(labels["scheme"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: {LABELS} or {VOCABULARY} lacks {error}") from error


class MetricsLog:
    """``metrics.jsonl``: one JSON object a line, each written out at once."""

    def __init__(self, path: Path, *, keep_lines: int = 0) -> None:
        kept: Sequence[bytes] = (
            path.read_bytes().splitlines(True)[:keep_lines] if keep_lines else []
        )
        self.lines = len(kept)
        self._file = path.open("wb")
        self._file.writelines(kept)

    def write(self, **values: Any) -> None:
        """Append one line."""
        self._file.write(json.dumps(values).encode() + b"\n")
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
