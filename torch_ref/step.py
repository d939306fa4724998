"""One optimizer step over its micro-batches, and evaluation over a set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from torch_ref import losses, metrics
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
) -> tuple[float, int]:
    """Forward, backward, clip, step, schedule: in this order. Returns (loss, correct tokens).

    Every micro-batch's sum is divided by the count of all of them, so that accumulated gradients
    are those of one large batch. Dividing each by its own count, and then by their number, would
    weigh tokens of short micro-batches more.
    """
    model.train()
    optimizer.zero_grad(set_to_none=True)
    count = sum(losses.loss_count(batch.labels, options.class_weights) for batch in batches)
    total, correct = 0.0, 0
    for batch in batches:
        logits = model(batch)
        loss = losses.masked_token_loss(
            logits,
            batch.labels,
            class_weights=options.class_weights,
            label_smoothing=options.label_smoothing,
        )
        (loss.total / count).backward()
        total += float(loss.total.detach())
        correct += metrics.token_counts(logits.detach(), batch.labels).correct
    if clip_norm:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    scheduler.step()
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
        total += float(losses.masked_token_loss(logits, batch.labels).total)
        counts = metrics.token_counts(logits, batch.labels)
        correct, tokens = correct + counts.correct, tokens + counts.total
        for row, length in zip(logits.argmax(dim=-1), batch.lengths, strict=True):
            predicted.append(row[:length].tolist())
    return total / max(1, tokens), metrics.TokenCounts(correct, tokens), predicted
