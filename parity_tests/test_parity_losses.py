"""Losses and gradients against torch and float64, under offsets, and in every bucket."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from loss_cases import (
    OPTIONS,
    Worst,
    apart,
    bits_apart,
    class_weights,
    compare,
    draw,
    loss_and_gradient,
    loss_of,
)
from torch_losses import torch_loss_and_gradient

from jaxtag.losses import token_loss

pytestmark = pytest.mark.parity

# A million rows, fewer where they are long; as many at once as keep one shape for each.
ROWS = {2: 150, 3: 150, 5: 150, 9: 150, 17: 140, 32: 100, 33: 60, 64: 60, 257: 30, 1000: 10}
CHUNKS = {257: 2_000, 1000: 1_000}
CHUNK = 10_000

# Over so many equal terms smoothing/C, torch's own float32 sum is 18 eps·w from its float64;
# jaxtag, 2 from it, is held to that one.
TORCH_GRADIENT_IN_FLOAT64 = {(1000, "smoothing")}


def expected_of_torch(logits_BLC, labels_BL, option):
    num_classes = logits_BLC.shape[-1]
    arguments = logits_BLC, labels_BL, class_weights(num_classes, option), OPTIONS[option][1]
    loss_BL, grad_BLC = torch_loss_and_gradient(*arguments)
    if (num_classes, option) in TORCH_GRADIENT_IN_FLOAT64:
        _, grad_BLC = torch_loss_and_gradient(*arguments, dtype=torch.float64)
    return loss_BL, grad_BLC


def agree_with_torch(parity, option, rows):
    """Compare so many rows of each number of classes."""
    worst = Worst(parity)
    for num_classes, count in rows.items():
        chunk = CHUNKS.get(num_classes, CHUNK)
        case = f"C = {num_classes}, {option}"
        own = torchs = 0.0
        for number in range(-(-count // chunk)):
            seed = 1000 * number + 4 * num_classes + list(OPTIONS).index(option)
            logits_BLC, labels_BL = draw(seed, chunk, num_classes)
            expected = expected_of_torch(logits_BLC, labels_BL, option)
            errors = compare(worst, case, logits_BLC, labels_BL, option, *expected)
            own, torchs = max(own, errors[0]), max(torchs, errors[1])
        worst.see("4b", max(0.0, own - 1.5 * torchs), f"{case}, worst row of each", count)
    worst.check()


@pytest.mark.parametrize("option", OPTIONS)
def test_losses_and_gradients_of_hard_rows_are_torchs(parity, option):
    agree_with_torch(parity, option, {3: CHUNK, 32: CHUNK, 33: CHUNK, 1000: 1_000})


@pytest.mark.long
@pytest.mark.parametrize("option", OPTIONS)
def test_losses_and_gradients_of_a_million_hard_rows_are_torchs(parity, option):
    agree_with_torch(parity, option, {c: 1_000 * thousands for c, thousands in ROWS.items()})


def logits_and_labels(num_classes):
    """Bytes of two tokens' logits, fast to draw, and their labels, -1 for ignored."""
    size = 2 * 2 * num_classes
    return st.tuples(
        st.binary(min_size=size, max_size=size),
        hnp.arrays(np.int32, (1, 2), elements=st.integers(-1, num_classes - 1)),
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_any_logits_and_labels_give_torchs_losses_and_gradients(parity, option):
    worst = Worst(parity)

    @settings(max_examples=200, deadline=None)
    @given(
        rows=st.sampled_from([3, 9, 33]).flatmap(logits_and_labels),
        step=st.sampled_from([1e-7, 1e-4, 1 / 256, 1 / 3]),
        offset=st.sampled_from([0.0, 1e2, -1e4, 1e6, -1e6]),
    )
    def agree(rows, step, offset):
        steps = np.frombuffer(rows[0], np.int16).reshape(1, 2, -1)
        logits_BLC = np.where(steps == -(2**15), -np.inf, steps * step + offset).astype(np.float32)
        labels_BL = np.where(rows[1] < 0, -100, rows[1])
        expected = expected_of_torch(logits_BLC, labels_BL, option)
        case = f"generated rows, C = {logits_BLC.shape[-1]}, {option}"
        compare(worst, case, logits_BLC, labels_BL, option, *expected)

    agree()
    worst.check()


@pytest.mark.parametrize("num_classes", [9, 33])
def test_a_common_offset_that_is_exact_changes_no_bit(parity, num_classes):
    worst = Worst(parity)

    @settings(max_examples=250, deadline=None)
    @given(
        steps=hnp.arrays(np.int32, (1, 4, num_classes), elements=st.integers(-(2**20), 2**20)),
        offset=st.integers(-(2**24) + 2**20, 2**24 - 2**20),
        size=st.sampled_from([1.0, 2.0**-8, 2.0**-20]),
        labels_BL=hnp.arrays(np.int32, (1, 4), elements=st.integers(0, num_classes - 1)),
        option=st.sampled_from(list(OPTIONS)),
    )
    def equal(steps, offset, size, labels_BL, option):
        plain, moved = (
            loss_and_gradient(
                ((steps + o) * size).astype(np.float32),
                labels_BL,
                class_weights(num_classes, option),
                label_smoothing=OPTIONS[option][1],
            )
            for o in (0, offset)
        )
        differences = sum(bits_apart(a, b) for a, b in zip(plain, moved, strict=True))
        worst.see("5", differences, f"C = {num_classes}, {option}, gradient too")

    equal()
    worst.check()


SETS = 100
POOL = (8, 512)


def agree_in_every_bucket(parity, num_classes, buckets, option):
    """Compare the same tokens in buckets and programs with those of one evaluation program."""
    weights_C, smoothing = class_weights(num_classes, option), OPTIONS[option][1]
    if weights_C is not None:
        weights_C = weights_C / weights_C.max()  # no gradient is above 1
    logits_BLC, labels_BL = draw(num_classes, POOL[0] * POOL[1], num_classes)
    options = {"class_weights_C": weights_C, "label_smoothing": smoothing}
    pool = logits_BLC.reshape(*POOL, num_classes), labels_BL.reshape(POOL)
    loss = np.ravel(loss_of(*pool, **options))
    grad = np.reshape(loss_and_gradient(*pool, **options)[1], (-1, num_classes))
    worst = Worst(parity)
    for rows, length in buckets:
        case = f"{rows} x {length}, C = {num_classes}, {option}"
        for number in range(SETS):
            cells = (37 * number + np.arange(rows * length)) % loss.size
            bucket_BL = labels_BL[0, cells].reshape(rows, length)
            bucket_BLC = logits_BLC[0, cells].reshape(rows, length, num_classes)
            evaluated_BL = loss_of(bucket_BLC, bucket_BL, **options)
            trained_BL, grad_BLC = loss_and_gradient(bucket_BLC, bucket_BL, **options)
            for program, loss_BL in ("evaluation", evaluated_BL), ("training", trained_BL):
                differences = bits_apart(np.ravel(loss_BL), loss[cells])
                worst.see("6a", differences, f"{case}, {program}", cells.size)
            difference = apart(np.reshape(grad_BLC, (-1, num_classes)), grad[cells], 1.0).max()
            worst.see("6b", difference, case, cells.size)
    worst.check()


@pytest.mark.parametrize("option", OPTIONS)
def test_a_token_has_one_loss_in_every_bucket_and_program(parity, option):
    agree_in_every_bucket(parity, 9, [(1, 1), (16, 8), (5, 24), (1, 64), (16, 64)], option)


LENGTHS = (1, 8, 16, 32, 64, 128, 256)


@pytest.mark.long
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("num_classes", [2, 5, 17, 32])
def test_a_token_has_one_loss_in_many_buckets_and_programs(parity, num_classes, option):
    buckets = [(rows, length) for rows in (1, 4, 32) for length in LENGTHS]
    agree_in_every_bucket(parity, num_classes, buckets, option)


@pytest.mark.parametrize("option", ["plain", "weights"])
@pytest.mark.parametrize("num_classes", [9, pytest.param(32, marks=pytest.mark.long)])
def test_eager_losses_are_bitwise_those_of_a_program(parity, num_classes, option):
    weights_C = class_weights(num_classes, option)
    weights_C = None if weights_C is None else jnp.array(weights_C)
    worst = Worst(parity)
    for seed in range(SETS):
        logits_BLC, labels_BL = map(jnp.array, draw(seed, 64, num_classes))
        eager_BL = token_loss(logits_BLC, labels_BL, class_weights_C=weights_C)
        expected_BL = loss_of(logits_BLC, labels_BL, weights_C)
        case = f"eager, C = {num_classes}, {option}"
        worst.see("6a", bits_apart(eager_BL, expected_BL), case, labels_BL.size)
    worst.check()
