"""Trees of arrays and facts in JSON in; files that are whole or absent out, and back.

Tensors are safetensors, everything else is JSON; nothing is pickled. A file is written beside its
place, synced and renamed. A checkpoint is a directory with a manifest of the size and CRC-32 of
its files.
"""

from __future__ import annotations

import json
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

from jaxtag import files
from jaxtag.config import InputError

T = TypeVar("T")

MANIFEST = "manifest.json"
STATE, POSITION = "state.safetensors", "position.json"
_OTHER_MODEL = "the file belongs to a model of other settings or labels"


class CheckpointError(InputError):
    """A file of a run or checkpoint that is missing, damaged or of another model."""


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    try:
        content = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has an escape in JSON, and no UTF-8
        content = json.dumps(value, indent=1).encode()
    files.write_bytes(path, content + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of a run; ``CheckpointError`` where it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a file of the run, found {error.strerror}; restore it or train anew"
        ) from error
    except ValueError as error:
        raise CheckpointError(
            f"{path}: expected JSON, found {error}; restore the file or train anew"
        ) from error


def flatten(tree: Any) -> dict[str, npt.NDArray[Any]]:
    """Name every leaf by its path, as ``encoder.layers.0.bias``, and bring it to the host."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))
    # safetensors writes an array's memory as it lies, which a transposed view would garble.
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf, order="C")
        for path, leaf in leaves
    }


def save_tree(path: Path, tree: Any) -> None:
    """Write a tree of arrays as one safetensors file."""
    files.write_bytes(path, safetensors.numpy.save(flatten(tree)))


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
                raise CheckpointError(f"{path}: {which}: {name}; {_OTHER_MODEL}")
            loaded = []
            for name, leaf in expected.items():
                tensor = file.get_tensor(name)
                if tensor.shape != leaf.shape or tensor.dtype != leaf.dtype:
                    raise CheckpointError(
                        f"{path}: {name}: expected {leaf.dtype} {leaf.shape}, "
                        f"found {tensor.dtype} {tensor.shape}; {_OTHER_MODEL}"
                    )
                loaded.append(tensor)
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a finished epoch's model, found none; go on with --resume "
            "or train anew"
        ) from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(
            f"{path}: expected a safetensors file, found {error}; restore it or train anew"
        ) from error
    return jax.tree_util.tree_unflatten(structure, loaded)


def save(directory: Path, number: int, state: Any, position: Mapping[str, Any]) -> None:
    """Write checkpoint ``number`` under ``directory``, then remove the older ones there."""
    final = directory / f"{number:06}"
    temporary = directory / f".{final.name}.tmp"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        save_tree(temporary / STATE, state)
        write_json(temporary / POSITION, position)
        write_json(temporary / MANIFEST, {f: _checksum(temporary / f) for f in (STATE, POSITION)})
        _remove(final)
        temporary.replace(final)
        files.sync_directory(directory)
        for older in _finished(directory):
            if older != final:
                _remove(older)
    except OSError as error:
        raise CheckpointError(
            f"{final}: expected a checkpoint that can be written, found {error.strerror}; "
            "make room and go on with --resume"
        ) from error


def _finished(directory: Path) -> list[Path]:
    """Checkpoints that were written to the end, the newest last."""
    marked = [path for path in directory.glob("*") if (path / MANIFEST).is_file()]
    return sorted((p for p in marked if p.name.isdecimal()), key=lambda path: int(path.name))


def _remove(path: Path) -> None:
    # The manifest goes first: what is left of an interrupted removal is no checkpoint.
    (path / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def load_newest(directory: Path, template: T) -> tuple[T, dict[str, Any]] | None:
    """Read the newest checkpoint, state and position; None where there is none.

    Raises ``CheckpointError`` where it is damaged or does not fit ``template``.
    """
    found = _finished(directory)
    if not found:
        return None
    _verify(found[-1])
    return load_tree(found[-1] / STATE, template), read_json(found[-1] / POSITION)


def _verify(path: Path) -> None:
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or manifest.keys() != {STATE, POSITION}:
        raise CheckpointError(
            f"{path / MANIFEST}: expected the checksums of {STATE} and {POSITION}, found others; "
            f"remove {path} to start from nothing"
        )
    for name, checksum in manifest.items():
        if not (path / name).is_file() or _checksum(path / name) != checksum:
            raise CheckpointError(
                f"{path / name}: damaged, its checksum differs from {MANIFEST}; "
                f"remove {path} to start from nothing"
            )


def _checksum(path: Path) -> dict[str, int]:
    content = path.read_bytes()
    return {"size": len(content), "crc32": zlib.crc32(content)}
