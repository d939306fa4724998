"""What torch said of some hard logits, bit for bit, for where torch is not installed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from loss_cases import OPTIONS, class_weights, draw
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

PATH = Path(__file__).parent / "fixtures" / "losses.safetensors"
ROWS = 128
CLASSES = (2, 9, 33, 64)


def derive():
    """Logits and labels from their seeds, and torch's losses and gradients, by name."""
    from torch_losses import torch_loss_and_gradient

    arrays = {}
    for num_classes in CLASSES:
        logits_BLC, labels_BL = draw(num_classes, ROWS, num_classes)
        arrays[f"{num_classes}/logits"], arrays[f"{num_classes}/labels"] = logits_BLC, labels_BL
        for option, (_, smoothing) in OPTIONS.items():
            loss_BL, grad_BLC = torch_loss_and_gradient(
                logits_BLC, labels_BL, class_weights(num_classes, option), smoothing
            )
            arrays[f"{num_classes}/{option}/loss"] = loss_BL
            arrays[f"{num_classes}/{option}/gradient"] = grad_BLC
    return arrays


def origin():
    """Which torch on which vector width: another one may round otherwise."""
    import torch

    return {"torch": torch.__version__, "vectors": torch.backends.cpu.get_cpu_capability()}


def recorded_origin():
    """The same of the record."""
    with safe_open(PATH, "np") as file:
        return file.metadata()


def load():
    """The recorded arrays, by name."""
    return load_file(PATH)


def write():
    """Record anew."""
    PATH.parent.mkdir(exist_ok=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in derive().items()}
    save_file(arrays, PATH, metadata=origin())
