"""Kept, right and confused tokens counted as torch counts them, to the last one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loss_cases import Worst, raw_bits

import torch_ref.metrics
from jaxtag.metrics import token_counts

pytestmark = pytest.mark.parity

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 3.4e38], np.float32)
CHUNK = 20_000


@jax.jit
def all_counts(logits_BLC, labels_BL):
    """Right and kept tokens, and how many of each label are taken for each class."""
    classes_C = jnp.arange(logits_BLC.shape[-1])

    def confused(label, guess):
        guess_BL = jnp.where(labels_BL == label, guess, -100)
        return token_counts(logits_BLC, guess_BL).correct

    over_guesses = jax.vmap(confused, in_axes=(None, 0))
    confusion_CC = jax.vmap(over_guesses, in_axes=(0, None))(classes_C, classes_C)
    return token_counts(logits_BLC, labels_BL), confusion_CC


def differences(logits_BLC, labels_BL):
    """By how much the counts differ from torch's, all added up."""
    logits_BLC = np.asarray(logits_BLC)
    if logits_BLC.dtype == jnp.bfloat16:
        logits = torch.tensor(logits_BLC.view(np.int16)).view(torch.bfloat16)
    else:
        logits = torch.tensor(logits_BLC)
    labels = torch.tensor(labels_BL, dtype=torch.long)
    expected = torch_ref.metrics.token_counts(logits, labels)
    kept = labels != -100
    num_classes = logits_BLC.shape[-1]
    pairs = (labels * num_classes + logits.argmax(dim=-1))[kept]
    expected_CC = torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)
    counts, confusion_CC = all_counts(logits_BLC, labels_BL)
    return (
        abs(int(counts.correct) - expected.correct)
        + abs(int(counts.total) - expected.total)
        + int(np.abs(np.asarray(confusion_CC) - expected_CC.numpy()).sum())
    )


def hard_logits(kind, seed, num_classes):
    """Rows of one kind; numbers below the normal ones, which XLA takes for 0, are 0."""
    raw = raw_bits([seed, 4], (1, CHUNK, num_classes))
    match kind:
        case "float32 of any bits":
            bits = raw.astype(np.uint32)
            return np.where(bits & 0x7F800000, bits, bits & 0x80000000).view(np.float32)
        case "bfloat16 of any bits":
            bits = raw.astype(np.uint16)
            return np.where(bits & 0x7F80, bits, bits & 0x8000).view(jnp.bfloat16)
        case "bfloat16 near 100":
            return (96.0 + (raw % 64) / 16).astype(np.float32).astype(jnp.bfloat16)
        case "ties, zeros, infinities and NaN":
            return SPECIAL[raw % len(SPECIAL)]
        case "ties and zeros":
            return SPECIAL[3 + raw % 4]


KINDS = (
    "float32 of any bits",
    "bfloat16 of any bits",
    "bfloat16 near 100",
    "ties, zeros, infinities and NaN",
    "ties and zeros",
)


def counts_equal(parity, kind, classes, chunks):
    worst = Worst(parity)
    for num_classes in classes:
        for number in range(chunks):
            seed = 100 * number + num_classes
            labels = (raw_bits([seed, 5], (1, CHUNK)) % (num_classes + 1)).astype(np.int32) - 1
            labels = np.where(labels < 0, -100, labels)
            value = differences(hard_logits(kind, seed, num_classes), labels)
            worst.see("1", value, f"{kind}, C = {num_classes}", CHUNK)
    worst.check()


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_hard_rows_are_torchs(parity, kind):
    counts_equal(parity, kind, [9], chunks=1)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_a_million_hard_rows_are_torchs(parity, kind):
    counts_equal(parity, kind, [2, 9], chunks=5)


def test_counts_of_any_logits_and_labels_are_torchs(parity):
    worst = Worst(parity)
    normal = st.floats(width=32, allow_subnormal=False)

    @settings(max_examples=1000, deadline=None)
    @given(
        logits_BLC=hnp.arrays(
            np.float32, (1, 4, 3), elements=normal | st.sampled_from(SPECIAL.tolist())
        ),
        labels_BL=hnp.arrays(np.int32, (1, 4), elements=st.sampled_from([-100, 0, 1, 2])),
        dtype=st.sampled_from([np.float32, jnp.bfloat16]),
    )
    def equal(logits_BLC, labels_BL, dtype):
        with np.errstate(over="ignore", invalid="ignore"):
            rounded_BLC = logits_BLC.astype(dtype)
        worst.see("1", differences(rounded_BLC, labels_BL), f"generated, {np.dtype(dtype)}")

    equal()
    worst.check()
