"""Weights of torch_ref's taggers to jaxtag's and back, by path, without a change of any bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

TABLES = ("embed.words", "embed.inside.table")
Turn = Callable[[Any], Any]


def to_jax(weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A state dict, or anything that has its names, to a nested dict of numpy arrays."""
    params: dict[str, Any] = {}
    for name, tensor in weights.items():
        array = tensor.detach().numpy().copy()
        if ".bias_hh_" in name:
            if array.any():
                raise ValueError(f"{name}: expected zeros, since jaxtag has one bias")
            continue
        path, turn, _ = _path(name)
        node = params
        *parents, leaf = path.split(".")
        for parent in parents:
            key: Any = int(parent) if parent.isdigit() else parent
            node = node.setdefault(key, {})
        node[leaf] = turn(array)
    return params


def to_torch(
    params: Mapping[str, Any], like: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """A nested dict of parameters to tensors with the names and shapes of ``like``."""
    weights = {}
    for name, tensor in like.items():
        if ".bias_hh_" in name:
            weights[name] = torch.zeros_like(tensor)
            continue
        node: Any = params
        path, _, turn_back = _path(name)
        for part in path.split("."):
            node = node[int(part) if part.isdigit() else part]
        weights[name] = torch.from_numpy(np.ascontiguousarray(turn_back(np.asarray(node))))
    return weights


def _path(name: str) -> tuple[str, Turn, Turn]:
    """jaxtag's path of a torch parameter, what turns its array there, and what turns it back."""
    lstm = re.fullmatch(r"encoder\.lstm\.(weight|bias)_(ih|hh)_l(\d+)(_reverse)?", name)
    if lstm:
        kind, side, layer, reverse = lstm.groups()
        place = f"encoder.layers.{layer}.{1 if reverse else 0}"
        part = "inputs" if side == "ih" else "recurrent"
        leaf = "kernel" if kind == "weight" else "bias"
        return f"{place}.{part}.{leaf}", np.transpose, np.transpose
    module, _, leaf = name.rpartition(".")
    if module in TABLES or leaf != "weight":
        return (module if module in TABLES else name), np.array, np.array
    if "norm" in module:
        return f"{module}.scale", np.array, np.array
    if "convolve" in module:  # (D, K, 3) there, (3 K, D) here
        return f"{module}.kernel", _flat, lambda a: a.reshape(3, -1, a.shape[-1]).transpose(2, 1, 0)
    return f"{module}.kernel", np.transpose, np.transpose


def _flat(array: Any) -> Any:
    return array.transpose(2, 1, 0).reshape(-1, array.shape[0])
