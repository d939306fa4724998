"""``torch.amp.GradScaler`` around one optimizer step, in the one right order."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LRScheduler


def disabled() -> GradScaler:
    """A scaler that passes everything through, so that the loop is the same without one."""
    return GradScaler("cpu", enabled=False)


def take_step(
    scaler: GradScaler,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    parameters: Iterable[nn.Parameter],
    clip_norm: float,
) -> bool:
    """Unscale, clip, step or skip, update the scale, and only then the schedule.

    Returns whether the step was taken. Clipping before ``unscale_`` would clip gradients 65,536
    times as large, to almost nothing.
    """
    scaler.unscale_(optimizer)
    if clip_norm:
        clip_grad_norm_(parameters, clip_norm)
    scaler.step(optimizer)
    taken = not overflowed(scaler, optimizer)
    scaler.update()
    if taken:  # stepping the schedule on a skipped step would wear the warm-up away
        scheduler.step()
    return taken


def overflowed(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether the last gradient held an inf or a NaN; to be asked before ``scaler.update``.

    ``GradScaler`` does not say whether it has skipped, and a lower scale afterwards does not show
    it under a fused optimizer; this is what it decides by.
    """
    if not scaler.is_enabled():
        return False
    found = scaler._found_inf_per_device(optimizer)
    return any(bool(flag) for flag in found.values())
