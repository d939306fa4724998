"""Counts of tokens and of right ones: ties, padding, and one ratio over all batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tolerances import FEW_FLOAT32_ROUNDINGS

from jaxtag.metrics import TokenCounts, token_counts

jitted = jax.jit(token_counts, static_argnames="ignore_index")


def test_of_equal_logits_the_first_class_is_the_prediction():
    logits_BLC = jnp.array([[[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]])
    assert int(jitted(logits_BLC, jnp.array([[1, 0]])).correct) == 2
    assert int(jitted(logits_BLC, jnp.array([[2, 2]])).correct) == 0


@settings(max_examples=60, deadline=None)
@given(
    logits_BLC=hnp.arrays(
        np.float32,
        (2, 4, 3),
        elements=st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, 2.0, np.inf, np.nan]),
    ),
    labels_BL=hnp.arrays(np.int32, (2, 4), elements=st.sampled_from([-100, 0, 1, 2])),
)
def test_ties_infinities_and_nan_count_as_with_torchs_argmax(logits_BLC, labels_BL):
    best_BL = torch.tensor(logits_BLC).argmax(dim=-1).numpy()
    counts = jitted(logits_BLC, labels_BL)
    assert int(counts.correct) == np.sum((best_BL == labels_BL) & (labels_BL != -100))
    assert int(counts.total) == np.sum(labels_BL != -100)


def test_ties_of_bfloat16_logits_count_as_with_torchs_argmax():
    rng = np.random.default_rng(0)
    logits_BLC = jnp.asarray(rng.normal(100.0, 1.0, (8, 64, 9)), jnp.bfloat16)
    labels_BL = rng.integers(0, 9, (8, 64)).astype(np.int32)
    as_torch = torch.tensor(np.asarray(logits_BLC, np.float32)).bfloat16()
    best = as_torch.max(dim=-1, keepdim=True).values
    assert ((as_torch == best).sum(dim=-1) > 1).any()
    assert int(jitted(logits_BLC, labels_BL).correct) == np.sum(
        as_torch.argmax(dim=-1).numpy() == labels_BL
    )


def test_ignored_cells_count_neither_as_right_nor_at_all():
    logits_BLC = jnp.zeros((1, 4, 3)).at[..., 1].set(1.0)
    counts = jitted(logits_BLC, jnp.array([[1, -100, 0, -100]]))
    assert (int(counts.correct), int(counts.total)) == (1, 2)


def test_another_ignore_index_may_be_a_class():
    logits_BLC = jnp.zeros((1, 4, 3)).at[..., 1].set(1.0)
    counts = jitted(logits_BLC, jnp.array([[1, 0, 2, 1]]), ignore_index=1)
    assert (int(counts.correct), int(counts.total)) == (0, 2)


def test_counts_are_int32():
    counts = jitted(jnp.zeros((1, 4, 3)), jnp.array([[1, 0, 2, 1]]))
    assert (counts.correct.dtype, counts.total.dtype) == (jnp.int32, jnp.int32)


def test_accuracy_over_batches_is_right_tokens_over_all_tokens():
    # One token of which none is right, then 99 of which all are: 0.99, not the mean 0.5.
    logits_BLC = jnp.zeros((1, 99, 2)).at[..., 0].set(1.0)
    few = jitted(logits_BLC, jnp.full((1, 99), -100).at[0, 0].set(1))
    many = jitted(logits_BLC, jnp.zeros((1, 99), jnp.int32))
    added = jax.tree.map(jnp.add, few, many)
    assert isinstance(added, TokenCounts)
    assert float(added.accuracy()) == pytest.approx(0.99, rel=FEW_FLOAT32_ROUNDINGS)


def test_accuracy_of_nothing_is_zero():
    counts = jitted(jnp.zeros((1, 4, 3)), jnp.full((1, 4), -100))
    assert float(counts.accuracy()) == 0.0
