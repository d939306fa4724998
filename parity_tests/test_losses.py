"""Token losses by hand, and as properties: pieces, types, bad labels; the claims are elsewhere."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import loss_and_gradient, natural_scale
from tolerances import (
    CROSS_ENTROPY_LOSS_EPS,
    FEW_FLOAT32_ROUNDINGS,
    FLOAT32_EPS,
)
from torch_losses import torch_loss_and_gradient

from jaxtag.losses import LossSum, count_bad_labels, masked_token_loss, token_loss
from jaxtag.metrics import TokenCounts, token_counts

B, L = 8, 16
summed = jax.jit(masked_token_loss, static_argnames=("ignore_index", "label_smoothing"))


def example(num_classes, *, seed=0, scale=3.0, ignored=0.3):
    """Normal logits and labels of which a share is ignored."""
    rng = np.random.default_rng(seed)
    logits_BLC = rng.normal(0.0, scale, (B, L, num_classes)).astype(np.float32)
    labels_BL = rng.integers(0, num_classes, (B, L)).astype(np.int32)
    labels_BL[rng.random((B, L)) < ignored] = -100
    return logits_BLC, labels_BL


def two_sentences(length):
    """Three tokens that each lose 1.0, twelve that each lose 0.5, then padding up to ``length``."""
    logits_BLC = np.full((2, length, 2), 7.0, np.float32)
    labels_BL = np.full((2, length), -100, np.int32)
    for row, (tokens, loss) in enumerate([(3, 1.0), (12, 0.5)]):
        logits_BLC[row, :tokens] = [-math.log(math.expm1(loss)), 0.0]
        labels_BL[row, :tokens] = 0
    return jnp.array(logits_BLC), jnp.array(labels_BL)


# By hand


def test_the_mean_is_over_tokens_and_not_over_sentences():
    loss = summed(*two_sentences(12))
    assert float(loss.total) == pytest.approx(9.0, rel=FEW_FLOAT32_ROUNDINGS)
    assert int(loss.count) == 15
    assert float(loss.mean()) == pytest.approx(0.60, rel=FEW_FLOAT32_ROUNDINGS)


def test_a_hundred_padded_cells_do_not_move_the_mean():
    bare, padded = (summed(*two_sentences(length)) for length in (12, 62))
    assert int(padded.count) == int(bare.count)
    assert float(padded.mean()) == pytest.approx(float(bare.mean()), rel=FEW_FLOAT32_ROUNDINGS)


def test_equal_logits_cost_the_log_of_the_classes():
    loss_BL = token_loss(jnp.full((1, 2, 9), 7.25), jnp.array([[0, 8]]))
    np.testing.assert_array_equal(loss_BL, np.full((1, 2), np.log(np.float32(9))))


def test_the_loss_agrees_with_its_definition_in_float64():
    logits_BLC, labels_BL = example(9, ignored=0.0)
    exact_BLC = logits_BLC.astype(np.float64)
    label_BL = np.take_along_axis(exact_BLC, labels_BL[..., None], axis=-1)[..., 0]
    exact_BL = np.log(np.exp(exact_BLC).sum(axis=-1)) - label_BL
    loss_BL, _ = loss_and_gradient(logits_BLC, labels_BL)
    error_BL = np.abs(np.asarray(loss_BL, np.float64) - exact_BL)
    bound_BL = CROSS_ENTROPY_LOSS_EPS * FLOAT32_EPS * natural_scale(logits_BLC, labels_BL)
    assert np.all(error_BL <= bound_BL)


# Against torch


@pytest.mark.parametrize("ignore_index", [-1, 0, 255])
def test_another_ignore_index_ignores_what_torch_ignores(ignore_index):
    logits_BLC, labels_BL = example(9)
    labels_BL = np.where(labels_BL == -100, ignore_index, labels_BL).astype(np.int32)
    loss_BL, _ = loss_and_gradient(logits_BLC, labels_BL, ignore_index=ignore_index)
    expected_BL, _ = torch_loss_and_gradient(logits_BLC, labels_BL, ignore_index=ignore_index)
    np.testing.assert_array_equal(np.asarray(loss_BL) == 0, labels_BL == ignore_index)
    bound_BL = CROSS_ENTROPY_LOSS_EPS * FLOAT32_EPS * natural_scale(logits_BLC, labels_BL)
    assert np.all(np.abs(loss_BL - expected_BL) <= bound_BL)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_logits_of_two_bytes_are_computed_in_float32_and_get_gradients_of_their_type(dtype):
    logits_BLC, labels_BL = example(9)
    rounded_BLC = jnp.asarray(logits_BLC, dtype)
    loss_BL, grad_BLC = loss_and_gradient(rounded_BLC, labels_BL)
    assert (loss_BL.dtype, grad_BLC.dtype) == (jnp.float32, dtype)
    expected_BL, _ = torch_loss_and_gradient(np.asarray(rounded_BLC, np.float32), labels_BL)
    bound_BL = CROSS_ENTROPY_LOSS_EPS * FLOAT32_EPS * natural_scale(rounded_BLC, labels_BL)
    assert np.all(np.abs(loss_BL - expected_BL) <= bound_BL)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_with_class_weights_divides_by_the_weights_of_the_labels_as_torch_does(smoothing):
    logits_BLC, labels_BL = example(9)
    weights_C = np.geomspace(0.25, 4.0, 9).astype(np.float32)
    expected = torch.nn.functional.cross_entropy(
        torch.tensor(logits_BLC).reshape(-1, 9),
        torch.tensor(labels_BL, dtype=torch.long).reshape(-1),
        weight=torch.tensor(weights_C),
        label_smoothing=smoothing,
    )
    loss = summed(
        logits_BLC, labels_BL, class_weights_C=jnp.array(weights_C), label_smoothing=smoothing
    )
    assert float(loss.mean()) == pytest.approx(float(expected), rel=FEW_FLOAT32_ROUNDINGS)


# Properties


def test_where_all_is_ignored_total_count_and_mean_are_zero():
    loss = summed(jnp.ones((2, 3, 5)), jnp.full((2, 3), -100))
    assert (float(loss.total), int(loss.count), float(loss.mean())) == (0.0, 0, 0.0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), cut=st.integers(1, B - 1), weighted=st.booleans())
def test_sums_of_pieces_add_up_to_the_whole(seed, cut, weighted):
    logits_BLC, labels_BL = example(9, seed=seed)
    weights_C = np.geomspace(0.25, 4.0, 9).astype(np.float32) if weighted else None
    # The other rows are ignored, not cut off, so that all pieces have one shape.
    head, tail, whole = (
        summed(logits_BLC, np.where(rows_B1, labels_BL, -100), class_weights_C=weights_C)
        for row_B1 in [np.arange(B)[:, None]]
        for rows_B1 in (row_B1 < cut, row_B1 >= cut, row_B1 >= 0)
    )
    added = jax.tree.map(jnp.add, head, tail)
    assert isinstance(added, LossSum)
    assert float(added.total) == pytest.approx(float(whole.total), rel=FEW_FLOAT32_ROUNDINGS)
    assert float(added.count) == pytest.approx(
        float(whole.count), rel=FEW_FLOAT32_ROUNDINGS if weighted else 0.0
    )


def test_the_count_is_int32_and_the_rest_float32():
    loss = summed(*two_sentences(12))
    assert (loss.total.dtype, loss.count.dtype, loss.mean().dtype) == (
        jnp.float32,
        jnp.int32,
        jnp.float32,
    )


def test_with_class_weights_the_count_is_the_sum_of_the_labels_weights():
    labels_BL = jnp.array([[0, 2, -100], [2, 1, -100]])
    weights_C = jnp.array([0.5, 8.0, 2.0])
    loss = summed(jnp.zeros((2, 3, 3)), labels_BL, class_weights_C=weights_C)
    assert loss.count.dtype == jnp.float32
    assert float(loss.count) == 0.5 + 2.0 + 2.0 + 8.0


# Bad labels


@pytest.mark.parametrize("label", [-101, -1, 5, 6])
def test_a_label_outside_the_classes_raises_and_says_where(label):
    labels_BL = jnp.array([[0, -100, 4], [1, label, 2]])
    with pytest.raises(IndexError, match=rf"label {label} at \(1, 1\).*\[0, 5\).*-100"):
        token_loss(jnp.zeros((2, 3, 5)), labels_BL)


def test_a_label_outside_the_classes_raises_under_grad_too():
    with pytest.raises(IndexError, match="label 5 at"):
        jax.grad(lambda x_BLC: masked_token_loss(x_BLC, jnp.array([[5]])).total)(
            jnp.zeros((1, 1, 5))
        )


@pytest.mark.parametrize(
    ("ignore_index", "bad"),
    [(-100, 3), (-1, 3), (5, 3), (0, 4)],
)
def test_bad_labels_are_counted_inside_jit(ignore_index, bad):
    labels_BL = jnp.array([[0, 4, -100], [-1, 5, 7]])
    count = jax.jit(count_bad_labels, static_argnums=1, static_argnames="ignore_index")(
        labels_BL, 5, ignore_index=ignore_index
    )
    assert count.dtype == jnp.int32
    assert int(count) == bad


@pytest.mark.parametrize("label", [2**32, 2**32 - 100, 2**63 - 1, -(2**63), -(2**32)])
def test_a_label_of_64_bits_is_never_read_by_its_last_32(label):
    labels_BL = np.array([[label, 1]], np.int64)
    assert int(count_bad_labels(labels_BL, 5)) == 1
    assert int(token_counts(jnp.zeros((1, 2, 5)), labels_BL).correct) == 0
    loss = masked_token_loss(jnp.zeros((1, 2, 5)), labels_BL, bad_labels="ignore")
    assert int(loss.count) == 1


@pytest.fixture
def without_checks():
    """The functions as users have them, without the tests' checks of annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("without_checks")
@pytest.mark.parametrize(
    ("logits", "labels"), [((3, 2), (3,)), ((2, 3, 1, 5), (2, 3, 1)), ((2, 3, 0), (2, 3))]
)
def test_arrays_of_other_ranks_or_without_a_class_are_refused(logits, labels):
    with pytest.raises(ValueError, match=r"expected logits \(B, L, C\)"):
        masked_token_loss(jnp.zeros(logits), jnp.zeros(labels, jnp.int32))


@pytest.mark.usefixtures("without_checks")
def test_labels_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="labels: expected integers, found float32"):
        masked_token_loss(jnp.zeros((1, 2, 5)), jnp.zeros((1, 2)))


def test_loss_sums_and_counts_add_by_plus():
    parts = [masked_token_loss(jnp.zeros((1, n, 4)), jnp.zeros((1, n), jnp.int32)) for n in (1, 3)]
    assert int((parts[0] + parts[1]).count) == 4
    assert TokenCounts(1, 2) + TokenCounts(3, 5) == TokenCounts(4, 7)
