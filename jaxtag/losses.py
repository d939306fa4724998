"""Logits and labels in; float32 per-token losses, and (total, count) sums that add, out.

The sums are what micro-batches, devices and hosts add up; they are divided once.

In a training loop in plain JAX, where -100 marks what is not to count:

>>> inputs_BLD = jax.random.normal(jax.random.key(0), (2, 4, 3))
>>> labels_BL = jnp.where(jnp.arange(4) < jnp.array([[4], [2]]), inputs_BLD.argmax(-1), -100)
>>> params = {"w": jnp.zeros((3, 3)), "b": jnp.zeros(3)}
>>> @jax.jit
... def train_step(params):
...     def objective(params):
...         logits_BLC = inputs_BLD @ params["w"] + params["b"]
...         return masked_token_loss(logits_BLC, labels_BL).mean()
...
...     loss, grads = jax.value_and_grad(objective)(params)
...     return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss
>>> for _ in range(20):
...     params, loss = train_step(params)
>>> float(loss) < 0.3
True

With ``flax.linen`` the logits come from ``apply``, and nothing else changes:

>>> import flax.linen as nn
>>> tagger = nn.Dense(3)
>>> variables = tagger.init(jax.random.key(1), inputs_BLD)
>>> @jax.jit
... def linen_step(variables):
...     def objective(variables):
...         return masked_token_loss(tagger.apply(variables, inputs_BLD), labels_BL).mean()
...
...     loss, grads = jax.value_and_grad(objective)(variables)
...     return jax.tree.map(lambda p, g: p - 0.5 * g, variables, grads), loss
>>> for _ in range(20):
...     variables, loss = linen_step(variables)
>>> float(loss) < 0.3
True
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

# Up to so many classes, reductions over them are unrolled: XLA then does the same additions in
# the same order in every program and at every shape, so that padding changes no bit.
UNROLLED_CLASSES = 32


class LossSum(NamedTuple):
    """A sum of per-token losses and what it is to be divided by; both add."""

    total: Float[Array, ""]
    count: Int[Array, ""] | Float[Array, ""]  # type: ignore[assignment]  # hides tuple.count
    """Tokens that count, int32; with class weights the sum of their weights, float32."""

    def __add__(self, other: LossSum) -> LossSum:  # type: ignore[override]  # no longer tuple
        """Sums of two parts as those of both."""
        return LossSum(self.total + other.total, self.count + other.count)

    def mean(self, *, empty: Literal["zero", "nan"] = "zero") -> Float[Array, ""]:
        """Loss per token; where nothing counts, 0, or NaN as in PyTorch."""
        count = self.count.astype(jnp.float32)
        mean = self.total / jnp.where(self.count == 0, 1.0, count)
        return jnp.where(self.count == 0, 0.0 if empty == "zero" else jnp.nan, mean)


def token_loss(
    logits_BLC: Float[Array | np.ndarray, "B L C"],
    labels_BL: Integer[Array | np.ndarray, "B L"],
    *,
    ignore_index: int = -100,
    class_weights_C: Float[Array | np.ndarray, " C"] | None = None,
    label_smoothing: float = 0.0,
    bad_labels: Literal["nan", "ignore"] = "nan",
) -> Float[Array, "B L"]:
    """Cross-entropy of each token in float32, 0 where its label is ``ignore_index``.

    The definition is that of ``torch.nn.functional.cross_entropy(reduction="none")``: with class
    weights w a token costs w[label] times its loss; label smoothing s spreads s over all C
    classes, s/C each, weighted too. Logits of any floating type are computed in float32. The
    largest logit is subtracted first, so that an offset common to a token's logits costs no
    precision.

    A label outside [0, C) other than ``ignore_index`` raises ``IndexError`` where the labels are
    concrete; inside ``jax.jit``, where nothing can be raised, its loss and gradient are NaN.
    With ``bad_labels="ignore"`` it is ignored in either place. Never is -1 the last class.

    >>> logits_BLC = jnp.array([[[2.0, 0.0], [0.0, 0.0]]])
    >>> token_loss(logits_BLC, jnp.array([[0, -100]])).round(4).tolist()
    [[0.12690000236034393, 0.0]]
    """
    _check_shapes(logits_BLC, labels_BL, class_weights_C, label_smoothing)
    num_classes = logits_BLC.shape[-1]
    labels_BL = _checked_labels(labels_BL, num_classes, ignore_index, bad_labels)
    keep_BL = labels_BL != ignore_index
    good_BL = (labels_BL >= 0) & (labels_BL < num_classes)
    safe_BL = jnp.where(keep_BL & good_BL, labels_BL, 0)
    # Before the maths: what padding holds, even NaN, must not reach the gradient as 0 * NaN.
    logits_BLC = jnp.where(keep_BL[..., None], jnp.asarray(logits_BLC, jnp.float32), 0.0)
    top_BL = jax.lax.stop_gradient(_over_classes(jnp.maximum, logits_BLC))
    shifted_BLC = logits_BLC - top_BL[..., None]
    log_sum_BL = jnp.log(_over_classes(jnp.add, jnp.exp(shifted_BLC)))
    label_BL = jnp.take_along_axis(shifted_BLC, safe_BL[..., None], axis=-1)[..., 0]
    loss_BL = log_sum_BL - label_BL
    weights_C = None if class_weights_C is None else jnp.asarray(class_weights_C, jnp.float32)
    if weights_C is not None:
        loss_BL = loss_BL * weights_C[safe_BL]
    if label_smoothing:
        # The mean of w_c (log_sum - shifted_c), in two terms: each difference would be rounded.
        spread_BLC = -shifted_BLC if weights_C is None else -shifted_BLC * weights_C
        weight = 1.0 if weights_C is None else jnp.mean(weights_C)
        spread_BL = _over_classes(jnp.add, spread_BLC) / num_classes + weight * log_sum_BL
        # (1 - s) loss + s spread with one product in the sum: of two, XLA fuses now this one with
        # it, now that one, depending on the shape.
        odds = (1.0 - label_smoothing) / label_smoothing
        loss_BL = label_smoothing * (odds * loss_BL + spread_BL)
    # A factor, not a branch: the gradient of the branch not taken would be 0 * NaN.
    loss_BL = loss_BL * jnp.where(keep_BL & ~good_BL, jnp.nan, 1.0)
    return jnp.where(keep_BL, loss_BL, 0.0)


def masked_token_loss(
    logits_BLC: Float[Array | np.ndarray, "B L C"],
    labels_BL: Integer[Array | np.ndarray, "B L"],
    *,
    ignore_index: int = -100,
    class_weights_C: Float[Array | np.ndarray, " C"] | None = None,
    label_smoothing: float = 0.0,
    bad_labels: Literal["nan", "ignore"] = "nan",
) -> LossSum:
    """Sum of ``token_loss`` over the tokens that count, and how many these are.

    The count is int32; with class weights it is the sum of the labels' weights, by which
    ``torch.nn.functional.cross_entropy(reduction="mean")`` divides. Parts computed on pieces of
    a batch add up to the whole. Bad labels are treated as ``token_loss`` treats them: ignored,
    they do not count.

    >>> logits_BLC = jnp.zeros((1, 3, 4))
    >>> loss = masked_token_loss(logits_BLC, jnp.array([[1, 2, -100]]))
    >>> int(loss.count), round(float(loss.mean()), 4)
    (2, 1.3863)
    """
    _check_shapes(logits_BLC, labels_BL, class_weights_C, label_smoothing)
    labels_BL = _checked_labels(labels_BL, logits_BLC.shape[-1], ignore_index, bad_labels)
    loss_BL = token_loss(
        logits_BLC,
        labels_BL,
        ignore_index=ignore_index,
        class_weights_C=class_weights_C,
        label_smoothing=label_smoothing,
    )
    return LossSum(_sum(loss_BL), loss_count(labels_BL, class_weights_C, ignore_index=ignore_index))


def loss_count(
    labels_BL: Integer[Array | np.ndarray, "B L"],
    class_weights_C: Float[Array | np.ndarray, " C"] | None = None,
    *,
    ignore_index: int = -100,
) -> Int[Array, ""] | Float[Array, ""]:
    """What a sum of losses over these labels is divided by; it needs no logits.

    With class weights, a label without one raises ``IndexError``, or makes the sum NaN inside jit.
    """
    if class_weights_C is None:
        return jnp.sum(int32_labels(labels_BL) != ignore_index, dtype=jnp.int32)
    weights_C = jnp.asarray(class_weights_C, jnp.float32)
    labels_BL = _checked_labels(labels_BL, weights_C.shape[0], ignore_index, "nan")
    weight_BL = weights_C.at[labels_BL].get(
        mode="fill", fill_value=jnp.nan, wrap_negative_indices=False
    )
    return _sum(jnp.where(labels_BL != ignore_index, weight_BL, 0.0))


def count_bad_labels(
    labels_BL: Integer[Array | np.ndarray, "B L"], num_classes: int, *, ignore_index: int = -100
) -> Int[Array, ""]:
    """Labels that are neither ``ignore_index`` nor a class, as int32; works inside jit."""
    return jnp.sum(_is_bad(int32_labels(labels_BL), num_classes, ignore_index), dtype=jnp.int32)


def int32_labels(labels_BL: Integer[Array | np.ndarray, "B L"]) -> Int[Array, "B L"]:
    """Labels of any integer type as int32, what does not fit cut off at its ends.

    JAX casts a number to the type of the array that it is compared with: to uint8 labels, -100
    would be class 156.

    >>> int32_labels(jnp.array([[156, 3]], jnp.uint8)) == -100
    Array([[False, False]], dtype=bool)
    """
    if not isinstance(labels_BL, jax.Array):
        labels_BL = np.asarray(labels_BL)  # JAX would keep the last 32 bits of 64
    if not jnp.issubdtype(labels_BL.dtype, jnp.integer):
        raise TypeError(f"labels: expected integers, found {labels_BL.dtype}")
    has, wanted = np.iinfo(labels_BL.dtype), np.iinfo(np.int32)
    if has.min < wanted.min or has.max > wanted.max:
        ends = max(has.min, wanted.min), min(has.max, wanted.max)
        labels_BL = (jnp if isinstance(labels_BL, jax.Array) else np).clip(labels_BL, *ends)
    return jnp.asarray(labels_BL, jnp.int32)


def _over_classes(combine: Any, values_BLC: Float[Array, "B L C"]) -> Float[Array, "B L"]:
    num_classes = values_BLC.shape[-1]
    if num_classes > UNROLLED_CLASSES:
        return combine.reduce(values_BLC, axis=-1)
    # Pairs, then pairs of pairs: one after the other, the roundings of 32 terms would pile up.
    parts = [values_BLC[..., c] for c in range(num_classes)]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _sum(values_BL: Float[Array, "B L"]) -> Float[Array, ""]:
    # Halves of the row, then halves of these: at some shapes, as 16 x 12, jnp.sum adds up one
    # number after the other, and is 6 ulp off. Rows may lie on many devices, so they come last.
    length = values_BL.shape[1]
    size = 1 << max(0, length - 1).bit_length()
    values_BL = jnp.pad(values_BL, ((0, 0), (0, size - length)))
    while size > 1:
        size //= 2
        values_BL = values_BL[:, :size] + values_BL[:, size:]
    return jnp.sum(values_BL)


def _check_shapes(
    logits_BLC: Float[Array | np.ndarray, "B L C"],
    labels_BL: Integer[Array | np.ndarray, "B L"],
    class_weights_C: Float[Array | np.ndarray, " C"] | None,
    label_smoothing: float,
) -> None:
    # Broadcasting would hide each of these, inside jit and out of it.
    logits, labels = jnp.shape(logits_BLC), jnp.shape(labels_BL)
    if len(logits) != 3 or logits[:2] != labels or not logits[2]:
        raise ValueError(
            f"expected logits (B, L, C) and labels (B, L) with at least one class, "
            f"found {logits} and {labels}"
        )
    if class_weights_C is not None and jnp.shape(class_weights_C) != logits[2:]:
        raise ValueError(
            f"class_weights_C: expected one for each of the {logits[2]} classes, "
            f"found {jnp.shape(class_weights_C)}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing: expected 0 to 1, found {label_smoothing}")


def _checked_labels(
    labels_BL: Integer[Array | np.ndarray, "B L"],
    num_classes: int,
    ignore_index: int,
    bad_labels: str,
) -> Int[Array, "B L"]:
    wide_BL = int32_labels(labels_BL)
    match bad_labels:
        case "nan":
            _raise_on_bad_labels(labels_BL, num_classes, ignore_index)
            return wide_BL
        case "ignore":
            return jnp.where(_is_bad(wide_BL, num_classes, ignore_index), ignore_index, wide_BL)
        case _:
            raise ValueError(f"bad_labels: expected 'nan' or 'ignore', found {bad_labels!r}")


def _is_bad(labels_BL: Any, num_classes: int, ignore_index: int) -> Any:
    return ((labels_BL < 0) | (labels_BL >= num_classes)) & (labels_BL != ignore_index)


def _raise_on_bad_labels(
    labels_BL: Integer[Array | np.ndarray, "B L"], num_classes: int, ignore_index: int
) -> None:
    if isinstance(labels_BL, jax.core.Tracer):
        return
    labels = np.asarray(labels_BL, np.int64)
    bad = np.argwhere(_is_bad(labels, num_classes, ignore_index))
    if bad.size:
        where = tuple(int(index) for index in bad[0])
        raise IndexError(
            f"label {labels[where]} at {where}: expected a class in [0, {num_classes}) "
            f"or ignore_index {ignore_index}"
        )
