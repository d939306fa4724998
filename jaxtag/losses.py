"""Logits and labels in; float32 per-token losses, and (total, count) sums that add, out.

The sums are what micro-batches, devices and hosts add up; they are divided once.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Up to so many classes, reductions over them are unrolled: XLA then does the same additions in
# the same order in every program and at every shape, so that padding changes no bit.
UNROLLED_CLASSES = 32


class LossSum(NamedTuple):
    """A sum of per-token losses and what it is to be divided by; both add."""

    total: Float[Array, ""]
    count: Int[Array, ""] | Float[Array, ""]  # type: ignore[assignment]  # hides tuple.count
    """Tokens that count, int32; with class weights the sum of their weights, float32."""

    def mean(self, *, empty: Literal["zero", "nan"] = "zero") -> Float[Array, ""]:
        """Loss per token; where nothing counts, 0, or NaN as in PyTorch."""
        count = self.count.astype(jnp.float32)
        mean = self.total / jnp.where(self.count == 0, 1.0, count)
        return jnp.where(self.count == 0, 0.0 if empty == "zero" else jnp.nan, mean)


def token_loss(
    logits_BLC: Float[Array, "B L C"],
    labels_BL: Int[Array, "B L"],
    *,
    ignore_index: int = -100,
    class_weights_C: Float[Array, " C"] | None = None,
    label_smoothing: float = 0.0,
) -> Float[Array, "B L"]:
    """Cross-entropy of each token in float32, 0 where its label is ``ignore_index``.

    The definition is that of ``torch.nn.functional.cross_entropy(reduction="none")``: with class
    weights w a token costs w[label] times its loss; label smoothing s spreads s over all C
    classes, s/C each, weighted too. Logits of any floating type are computed in float32. The
    largest logit is subtracted first, so that an offset common to a token's logits costs no
    precision.

    A label outside [0, C) other than ``ignore_index`` raises ``IndexError`` where the labels are
    concrete; inside ``jax.jit``, where nothing can be raised, its loss and gradient are NaN.

    >>> logits_BLC = jnp.array([[[2.0, 0.0], [0.0, 0.0]]])
    >>> token_loss(logits_BLC, jnp.array([[0, -100]])).round(4).tolist()
    [[0.12690000236034393, 0.0]]
    """
    num_classes = logits_BLC.shape[-1]
    _check_shapes(logits_BLC, labels_BL, class_weights_C, label_smoothing)
    _raise_on_bad_labels(labels_BL, num_classes, ignore_index)
    keep_BL = labels_BL != ignore_index
    good_BL = (labels_BL >= 0) & (labels_BL < num_classes)
    safe_BL = jnp.where(keep_BL & good_BL, labels_BL, 0)
    # Before the maths: what padding holds, even NaN, must not reach the gradient as 0 * NaN.
    logits_BLC = jnp.where(keep_BL[..., None], logits_BLC.astype(jnp.float32), 0.0)
    top_BL = jax.lax.stop_gradient(_over_classes(jnp.maximum, logits_BLC))
    shifted_BLC = logits_BLC - top_BL[..., None]
    log_sum_BL = jnp.log(_over_classes(jnp.add, jnp.exp(shifted_BLC)))
    label_BL = jnp.take_along_axis(shifted_BLC, safe_BL[..., None], axis=-1)[..., 0]
    loss_BL = log_sum_BL - label_BL
    weights_C = None if class_weights_C is None else class_weights_C.astype(jnp.float32)
    if weights_C is not None:
        loss_BL = loss_BL * weights_C[safe_BL]
    if label_smoothing:
        spread_BLC = log_sum_BL[..., None] - shifted_BLC
        if weights_C is not None:
            spread_BLC = spread_BLC * weights_C
        spread_BL = _over_classes(jnp.add, spread_BLC) / num_classes
        loss_BL = (1.0 - label_smoothing) * loss_BL + label_smoothing * spread_BL
    # A factor, not a branch: the gradient of the branch not taken would be 0 * NaN.
    loss_BL = loss_BL * jnp.where(keep_BL & ~good_BL, jnp.nan, 1.0)
    return jnp.where(keep_BL, loss_BL, 0.0)


def masked_token_loss(
    logits_BLC: Float[Array, "B L C"],
    labels_BL: Int[Array, "B L"],
    *,
    ignore_index: int = -100,
    class_weights_C: Float[Array, " C"] | None = None,
    label_smoothing: float = 0.0,
) -> LossSum:
    """Sum of ``token_loss`` over the tokens that count, and how many these are.

    The count is int32; with class weights it is the sum of the labels' weights, by which
    ``torch.nn.functional.cross_entropy(reduction="mean")`` divides. Parts computed on pieces of
    a batch add up to the whole:

    >>> logits_BLC = jnp.zeros((1, 3, 4))
    >>> loss = masked_token_loss(logits_BLC, jnp.array([[1, 2, -100]]))
    >>> int(loss.count), round(float(loss.mean()), 4)
    (2, 1.3863)
    """
    loss_BL = token_loss(
        logits_BLC,
        labels_BL,
        ignore_index=ignore_index,
        class_weights_C=class_weights_C,
        label_smoothing=label_smoothing,
    )
    return LossSum(
        jnp.sum(loss_BL), loss_count(labels_BL, class_weights_C, ignore_index=ignore_index)
    )


def loss_count(
    labels_BL: Int[Array, "B L"],
    class_weights_C: Float[Array, " C"] | None = None,
    *,
    ignore_index: int = -100,
) -> Int[Array, ""] | Float[Array, ""]:
    """What a sum of losses over these labels is divided by; it needs no logits."""
    keep_BL = labels_BL != ignore_index
    if class_weights_C is None:
        return jnp.sum(keep_BL, dtype=jnp.int32)
    weights_C = class_weights_C.astype(jnp.float32)
    return jnp.sum(weights_C[jnp.where(keep_BL, labels_BL, 0)], where=keep_BL)


def count_bad_labels(
    labels_BL: Int[Array, "B L"], num_classes: int, *, ignore_index: int = -100
) -> Int[Array, ""]:
    """Labels that are neither ``ignore_index`` nor a class, as int32; works inside jit."""
    bad_BL = (labels_BL < 0) | (labels_BL >= num_classes)
    return jnp.sum(bad_BL & (labels_BL != ignore_index), dtype=jnp.int32)


def _over_classes(combine: Any, values_BLC: Float[Array, "B L C"]) -> Float[Array, "B L"]:
    num_classes = values_BLC.shape[-1]
    if num_classes > UNROLLED_CLASSES:
        return combine.reduce(values_BLC, axis=-1)
    result_BL = values_BLC[..., 0]
    for c in range(1, num_classes):
        result_BL = combine(result_BL, values_BLC[..., c])
    return result_BL


def _check_shapes(
    logits_BLC: Float[Array, "B L C"],
    labels_BL: Int[Array, "B L"],
    class_weights_C: Float[Array, " C"] | None,
    label_smoothing: float,
) -> None:
    # Broadcasting would hide each of these, inside jit and out of it.
    *cells, num_classes = logits_BLC.shape
    if tuple(cells) != labels_BL.shape or not num_classes:
        raise ValueError(
            f"expected logits (B, L, C) and labels (B, L) with at least one class, "
            f"found {logits_BLC.shape} and {labels_BL.shape}"
        )
    if class_weights_C is not None and class_weights_C.shape != (num_classes,):
        raise ValueError(
            f"class_weights_C: expected one for each of the {num_classes} classes, "
            f"found {class_weights_C.shape}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: expected 0 to 1, found {label_smoothing}")


def _raise_on_bad_labels(labels_BL: Int[Array, "B L"], num_classes: int, ignore_index: int) -> None:
    if isinstance(labels_BL, jax.core.Tracer):
        return
    labels = np.asarray(labels_BL)
    bad = np.argwhere(((labels < 0) | (labels >= num_classes)) & (labels != ignore_index))
    if bad.size:
        where = tuple(int(index) for index in bad[0])
        raise IndexError(
            f"label {labels[where]} at {where}: expected a class in [0, {num_classes}) "
            f"or ignore_index {ignore_index}"
        )
