"""Losses and gradients of the reference, from and to numpy."""

from __future__ import annotations

import numpy as np
import torch

from torch_ref.losses import token_loss


def torch_loss_and_gradient(
    logits_BLC, labels_BL, weights_C=None, smoothing=0.0, *, ignore_index=-100, dtype=torch.float32
):
    """The loss of each token, and the gradient of their sum."""
    logits = torch.tensor(logits_BLC, dtype=dtype, requires_grad=True)
    loss = token_loss(
        logits,
        torch.tensor(labels_BL, dtype=torch.long),
        ignore_index=ignore_index,
        class_weights=None if weights_C is None else torch.tensor(weights_C, dtype=dtype),
        label_smoothing=smoothing,
    )
    loss.sum().backward()
    return np.asarray(loss.detach()), np.asarray(logits.grad)
