"""Decay groups, AdamW, clipping and the warm-up schedule, all PyTorch's own."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from jaxtag.config import TrainConfig


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Two groups: matrices decay; biases, norms and embeddings do not."""
    spared = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.LayerNorm)
        for parameter in module.parameters(recurse=False)
    }
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim > 1 and id(parameter) not in spared
            (decayed if is_matrix else free).append(parameter)
    return [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]


def build(
    model: nn.Module, config: TrainConfig, total_steps: int
) -> tuple[torch.optim.AdamW, LambdaLR]:
    """The optimizer and its schedule; step the schedule once after each optimizer step."""
    optimizer = torch.optim.AdamW(decay_groups(model, config.weight_decay), lr=config.lr, eps=1e-8)
    return optimizer, LambdaLR(optimizer, schedule_factor(config, total_steps))


def schedule_factor(config: TrainConfig, total_steps: int) -> Callable[[int], float]:
    """Share of the peak rate at a step: linear warm-up, then a linear or cosine fall to 0."""
    total = max(1, total_steps)
    warmup = min(round(config.warmup * total), total - 1)

    def factor(step: int) -> float:
        if step < warmup:
            return step / warmup
        done = min(1.0, (step - warmup) / (total - warmup))
        return 1.0 - done if config.decay == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    return factor
