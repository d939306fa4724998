"""One optimizer step over its micro-batches, and evaluation over a set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

from torch_ref import loss_scale, losses, metrics
from torch_ref.batch import Batch


@dataclass(frozen=True)
class LossOptions:
    """What the loss has besides logits and labels."""

    class_weights: Tensor | None = None
    label_smoothing: float = 0.0


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    batches: Sequence[Batch],
    options: LossOptions = LossOptions(),
    clip_norm: float = 1.0,
    scaler: GradScaler | None = None,
) -> tuple[float, int]:
    """Forward, scale, backward, unscale, clip, step or skip, schedule: in this order.

    Returns (loss, correct tokens). Without a scaler nothing is scaled or skipped.

    Every micro-batch's sum is divided by the count of all of them, so that accumulated gradients
    are those of one large batch. Dividing each by its own count, and then by their number, would
    weigh tokens of short micro-batches more.
    """
    scaler = loss_scale.disabled() if scaler is None else scaler
    model.train()
    optimizer.zero_grad(set_to_none=True)
    count = sum(losses.loss_count(batch.labels, options.class_weights) for batch in batches)
    if not count:  # 0/0 would make every parameter NaN
        return 0.0, 0
    total, correct = 0.0, 0
    for batch in batches:
        logits = model(batch)
        loss = losses.masked_token_loss(
            logits.float(),
            batch.labels,
            class_weights=options.class_weights,
            label_smoothing=options.label_smoothing,
        )
        scaler.scale(loss.total / count).backward()
        total += float(loss.total.detach())
        correct += metrics.token_counts(logits.detach(), batch.labels).correct
    loss_scale.take_step(scaler, optimizer, scheduler, model.parameters(), clip_norm)
    return total / float(count), correct


@torch.inference_mode()
def evaluate(
    model: nn.Module, batches: Iterable[Batch]
) -> tuple[float, metrics.TokenCounts, list[list[int]]]:
    """Loss per token, token counts and each sentence's predicted labels, over the whole set."""
    model.eval()  # dropout off: forgetting this is the most common wrong evaluation
    total, correct, tokens = 0.0, 0, 0
    predicted: list[list[int]] = []
    for batch in batches:
        logits = model(batch)
        total += float(losses.masked_token_loss(logits.float(), batch.labels).total)
        counts = metrics.token_counts(logits, batch.labels)
        correct, tokens = correct + counts.correct, tokens + counts.total
        for row, length in zip(logits.argmax(dim=-1), batch.lengths, strict=True):
            predicted.append(row[:length].tolist())
    return total / max(1, tokens), metrics.TokenCounts(correct, tokens), predicted
