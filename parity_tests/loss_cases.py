"""Seeds in; hard logits and labels out, the same bits on every machine; and how far losses differ.

Nothing here needs torch, so that what is recorded of it can be checked where it is missing.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from claims import CLAIMS
from report import Parity
from tolerances import FLOAT32_EPS

from jaxtag.losses import token_loss

OPTIONS = {
    "plain": (False, 0.0),
    "weights": (True, 0.0),
    "smoothing": (False, 0.1),
    "weights and smoothing": (True, 0.1),
}
SCALES = (1e-3, 1e-2, 0.1, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4)
OFFSETS = (0.0, 0.0, 1.0, -1e2, 1e4, -1e4, 1e6, -1e6)


def raw_bits(seed, shape):
    """Random uint64, which numpy promises never to change."""
    return np.random.Philox(key=seed).random_raw(int(np.prod(shape))).reshape(shape)


def nearly_normal(seed, shape):
    """Sums of four uniform numbers, which need no libm; float64, of variance 1."""
    fields = raw_bits(seed, shape).view(np.uint16).reshape(*shape, 4)
    return (fields.sum(axis=-1, dtype=np.int64) - 2 * 65535) * (np.sqrt(3.0) / 65536)


def draw(seed, rows, num_classes):
    """One row of B: logits of all scales and offsets, ties, -inf, inf and NaN; a tenth ignored."""
    normal = nearly_normal([seed, 1], (rows, num_classes))
    choice = raw_bits([seed, 2], (rows, 6))
    scale = np.array(SCALES)[choice[:, 0] % len(SCALES), None]
    offset = np.array(OFFSETS, np.float32)[choice[:, 1] % len(OFFSETS), None]
    kind = choice[:, 2, None] % 64
    logits = (normal * scale).astype(np.float32)
    logits = np.where(kind < 8, np.round(logits), logits)  # ties
    logits = logits + offset
    some = raw_bits([seed, 3], (rows, num_classes)) % 5 < 2
    logits = np.where((kind >= 8) & (kind < 16) & some, np.float32(-np.inf), logits)
    logits = np.where((kind == 16) & some, np.float32(np.inf), logits)
    logits = np.where((kind == 17) & some, np.float32(np.nan), logits)
    labels = (choice[:, 3] % num_classes).astype(np.int32)
    labels = np.where(choice[:, 4] % 10 == 0, np.int32(-100), labels)
    return logits[None], labels[None]


def class_weights(num_classes, option):
    """Weights from 1/4 to 4, or None."""
    if not OPTIONS[option][0]:
        return None
    return np.linspace(0.25, 4.0, num_classes).astype(np.float32)


@functools.partial(jax.jit, static_argnames=("ignore_index", "label_smoothing", "bad_labels"))
def loss_of(logits_BLC, labels_BL, class_weights_C=None, **options):
    """The loss of each token, in a program without a gradient."""
    return token_loss(logits_BLC, labels_BL, class_weights_C=class_weights_C, **options)


@functools.partial(jax.jit, static_argnames=("ignore_index", "label_smoothing", "bad_labels"))
def loss_and_gradient(logits_BLC, labels_BL, class_weights_C=None, **options):
    """The loss of each token, and the gradient of their sum."""

    def objective(logits_BLC):
        loss_BL = token_loss(logits_BLC, labels_BL, class_weights_C=class_weights_C, **options)
        return jnp.sum(loss_BL), loss_BL

    grad_BLC, loss_BL = jax.grad(objective, has_aux=True)(logits_BLC)
    return loss_BL, grad_BLC


def float64_loss(logits_BLC, labels_BL, weights_C, smoothing):
    """The definition of the loss of each token, in numpy float64."""
    num_classes = logits_BLC.shape[-1]
    weights_C = np.ones(num_classes) if weights_C is None else weights_C.astype(np.float64)
    safe_BL = np.maximum(labels_BL, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        logits_BLC = logits_BLC.astype(np.float64)
        shifted_BLC = logits_BLC - logits_BLC.max(axis=-1, keepdims=True)
        each_BLC = np.log(np.exp(shifted_BLC).sum(axis=-1, keepdims=True)) - shifted_BLC
        loss_BL = np.take_along_axis(each_BLC, safe_BL[..., None], axis=-1)[..., 0]
        loss_BL = loss_BL * weights_C[safe_BL]
        if smoothing:
            spread_BL = (each_BLC * weights_C).sum(axis=-1) / num_classes
            loss_BL = (1.0 - smoothing) * loss_BL + smoothing * spread_BL
    return np.where(labels_BL == -100, 0.0, loss_BL)


def natural_scale(logits_BLC, labels_BL, weights_C=None, smoothing=0.0):
    """S of the claims; 1 at least, infinite where the loss is."""
    logits_BLC = np.asarray(logits_BLC, np.float64)
    safe_BL = np.where((labels_BL >= 0) & (labels_BL < logits_BLC.shape[-1]), labels_BL, 0)
    with np.errstate(invalid="ignore"):
        low_BLC = logits_BLC.max(axis=-1, keepdims=True) - logits_BLC
        label_BL = np.take_along_axis(low_BLC, safe_BL[..., None], axis=-1)
        scale_BL = np.fmax(label_BL[..., 0], np.log(logits_BLC.shape[-1]))
        if smoothing:
            scale_BL = np.fmax(scale_BL, smoothing * low_BLC.mean(axis=-1))
    return np.fmax(scale_BL, 1.0) * (1.0 if weights_C is None else weights_C.max())


def apart(values, expected, unit):
    """Differences in multiples of ``unit``; 0 where both are NaN or the same infinity."""
    values, expected = np.asarray(values, np.float64), np.asarray(expected, np.float64)
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(values - expected) / unit)


def bits_apart(values, expected):
    """How many float32 differ in any bit; the NaN are all one."""
    values, expected = (
        np.where(np.isnan(v), np.float32(np.nan), v).view(np.int32)
        for v in (np.asarray(values), np.asarray(expected))
    )
    return int(np.sum(values != expected))


@dataclass
class Worst:
    """The worst value of each claim over the cases of a test."""

    parity: Parity
    values: dict[str, tuple[float, str]] = field(default_factory=dict)
    cases: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def see(self, claim, value, case, cases=1):
        """Take note of a value; fails at once where it exceeds the claim's bound, or is NaN."""
        self.cases[claim] += cases
        if claim not in self.values or not value <= self.values[claim][0]:
            self.values[claim] = float(value), case
        if not value <= CLAIMS[claim].bound:
            self.parity.check(claim, value, case=case, cases=self.cases[claim])

    def check(self):
        """Hand all to the report."""
        for claim, (value, case) in self.values.items():
            self.parity.check(claim, value, case=case, cases=self.cases[claim])


def compare(worst, case, logits_BLC, labels_BL, option, expected_BL, expected_BLC):
    """See jaxtag's losses and gradients against these, and its losses against float64.

    Returns how far jaxtag's and the expected losses are from float64, at worst, in eps·S.
    """
    smoothing = OPTIONS[option][1]
    weights_C = class_weights(logits_BLC.shape[-1], option)
    loss_BL, grad_BLC = loss_and_gradient(
        logits_BLC, labels_BL, weights_C, label_smoothing=smoothing
    )
    unit_BL = FLOAT32_EPS * natural_scale(logits_BLC, labels_BL, weights_C, smoothing)
    exact_BL = float64_loss(logits_BLC, labels_BL, weights_C, smoothing)
    error = apart(loss_BL, exact_BL, unit_BL).max()
    heaviest = 1.0 if weights_C is None else weights_C.max()
    # At an ignored token torch's gradient is NaN if its logits are; jaxtag's is 0.
    expected_BLC = np.where((labels_BL == -100)[..., None], 0.0, expected_BLC)
    rows = labels_BL.size
    worst.see("2", apart(loss_BL, expected_BL, unit_BL).max(), case, rows)
    worst.see("3", apart(grad_BLC, expected_BLC, FLOAT32_EPS * heaviest).max(), case, rows)
    worst.see("4a", error, case, rows)
    return error, apart(expected_BL, exact_BL, unit_BL).max()
