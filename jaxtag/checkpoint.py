"""Trees of arrays and facts in JSON in; files that are whole or absent out, and back.

Tensors are safetensors, everything else is JSON; nothing is pickled. A file is written beside its
place, synced and renamed. A checkpoint is a directory with a manifest of the size and CRC-32 of
its files.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from jaxtag.config import InputError

T = TypeVar("T")

MANIFEST = "manifest.json"
STATE, POSITION = "state.safetensors", "position.json"


class CheckpointError(InputError):
    """A file of a run or checkpoint that is missing, damaged or of another model."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that its place holds the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: not written: {error.strerror}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    try:
        content = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has an escape in JSON, and no UTF-8
        content = json.dumps(value, indent=1).encode()
    write_bytes(path, content + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run; ``CheckpointError`` where it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: not readable: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: expected JSON, found {error}") from error


def flatten(tree: Any) -> dict[str, npt.NDArray[Any]]:
    """Name every leaf by its path, as ``encoder.layers.0.bias``, and bring it to the host."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(jax.device_get(leaf))
        for path, leaf in leaves
    }


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of arrays as one safetensors file."""
    write_bytes(path, safetensors.numpy.save(flatten(tree)))


def load_tree(path: Path, template: T) -> T:
    """Read a safetensors file into the structure of ``template``, leaves as numpy arrays.

    ``template`` holds arrays or ``jax.ShapeDtypeStruct``s. Raises ``CheckpointError`` naming the
    first tensor that is missing, too many, or of another shape or dtype.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    expected = {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in leaves}
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            for name in sorted(names ^ expected.keys()):
                which = "has a tensor that the model lacks" if name in names else "lacks a tensor"
                raise CheckpointError(f"{path}: {which}: {name}")
            loaded = []
            for name, leaf in expected.items():
                tensor = file.get_tensor(name)
                if tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
                    raise CheckpointError(
                        f"{path}: {name}: expected {leaf.dtype} {leaf.shape}, "
                        f"found {tensor.dtype} {tensor.shape}"
                    )
                loaded.append(tensor)
    except OSError as error:
        raise CheckpointError(f"{path}: not readable: {error}") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: expected a safetensors file, found {error}") from error
    return jax.tree_util.tree_unflatten(structure, loaded)


def save(directory: Path, name: str, state: Any, position: Mapping[str, Any]) -> None:
    """Write checkpoint ``name`` under ``directory``, then remove the older ones there."""
    temporary = directory / f".{name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise CheckpointError(f"{temporary}: not written: {error.strerror}") from error
    save_tree(temporary / STATE, state)
    write_json(temporary / POSITION, position)
    write_json(temporary / MANIFEST, {f: _checksum(temporary / f) for f in (STATE, POSITION)})
    final = directory / name
    shutil.rmtree(final, ignore_errors=True)
    temporary.replace(final)
    for older in directory.iterdir():
        if older != final and (older / MANIFEST).is_file():
            shutil.rmtree(older)


def load_newest(directory: Path, template: T) -> tuple[T, dict[str, Any]] | None:
    """Read the newest checkpoint, state and position; None where there is none.

    Raises ``CheckpointError`` where it is damaged or does not fit ``template``.
    """
    found = [path for path in directory.glob("*") if (path / MANIFEST).is_file()]
    if not found:
        return None
    for path in found:
        _verify(path)
    newest = max(found, key=lambda path: read_json(path / POSITION)["step"])
    return load_tree(newest / STATE, template), read_json(newest / POSITION)


def _verify(path: Path) -> None:
    for name, checksum in read_json(path / MANIFEST).items():
        if not (path / name).is_file() or _checksum(path / name) != checksum:
            raise CheckpointError(
                f"{path / name}: damaged, its checksum differs from {MANIFEST}; "
                f"remove {path} to start from nothing"
            )


def _checksum(path: Path) -> dict[str, int]:
    content = path.read_bytes()
    return {"size": len(content), "crc32": zlib.crc32(content)}
