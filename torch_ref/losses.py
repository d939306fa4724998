"""Logits and labels in; per-token losses and their (total, count) out."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class LossSum(NamedTuple):
    """A sum of per-token losses, and what it is to be divided by."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count

    def mean(self) -> Tensor:
        """Loss per token; NaN where nothing counts, as reduction="mean" gives."""
        return self.total / self.count


def token_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of each token, (B, L, C) and (B, L) to (B, L); 0 where ignored."""
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        weight=class_weights,
        ignore_index=ignore_index,
        reduction="none",
        label_smoothing=label_smoothing,
    ).view_as(labels)


def masked_token_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> LossSum:
    """Sum over the tokens that count; dividing is left to whoever knows all of the step's parts.

    reduction="mean" here would weigh a micro-batch of 10 tokens like one of 500.
    """
    each = token_loss(
        logits,
        labels,
        ignore_index=ignore_index,
        class_weights=class_weights,
        label_smoothing=label_smoothing,
    )
    return LossSum(each.sum(), loss_count(labels, class_weights, ignore_index=ignore_index))


def loss_count(
    labels: Tensor, class_weights: Tensor | None = None, *, ignore_index: int = -100
) -> Tensor:
    """Tokens that count, or the sum of their class weights; needs no forward pass."""
    kept = labels != ignore_index
    return kept.sum() if class_weights is None else class_weights[labels[kept]].sum()
