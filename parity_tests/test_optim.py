"""The optimizer's parts, schedule, clipping, decay and bias corrections, each by hand."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import FEW_FLOAT32_ROUNDINGS

from jaxtag import model as models
from jaxtag import optim
from jaxtag.config import ConfigError, ModelConfig, TrainConfig
from jaxtag.precision import Policy

WORDS, PART_ROWS = 31, 37  # no other axis of a parameter is as long


def params_of(kind, parts):
    config = ModelConfig(kind=kind, width=8, heads=2, feed_forward=16, layers=2)
    sizes = models.Sizes(words=WORDS, kind=parts, parts=PART_ROWS, classes=3)
    init = models.build(config, Policy("float32"), sizes).init
    shapes = jax.eval_shape(init, jax.random.key(0))
    return jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)


def named_leaves(tree):
    return {
        jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


# Decay


@pytest.mark.parametrize("parts", ["affixes", "characters", "none"])
@pytest.mark.parametrize("kind", ["bilstm", "transformer"])
def test_decay_pulls_at_every_matrix_and_spares_biases_norms_and_embeddings(kind, parts):
    params = params_of(kind, parts)
    expected = {
        name: leaf.ndim >= 2 and leaf.shape[0] not in (WORDS, PART_ROWS)
        for name, leaf in named_leaves(params).items()
    }
    assert named_leaves(optim.decay_mask(params)) == expected
    assert set(expected.values()) == {True, False}


def test_without_a_gradient_a_step_moves_what_decays_by_rate_times_decay_and_nothing_else():
    params = {"head": {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.full(2, 3.0)}}
    config = TrainConfig(lr=0.5, warmup=0.0, weight_decay=0.1)
    optimizer = optim.build(config, optim.schedule(config, total_steps=10))
    no_gradient = jax.tree.map(jnp.zeros_like, params)
    updates, _ = jax.jit(optimizer.update)(no_gradient, optimizer.init(params), params)
    np.testing.assert_allclose(
        updates["head"]["kernel"], np.full((2, 2), -0.5 * 0.1 * 3.0), rtol=FEW_FLOAT32_ROUNDINGS
    )
    np.testing.assert_array_equal(updates["head"]["bias"], np.zeros(2))


# Schedule


@pytest.mark.parametrize(
    ("decay", "step", "expected"),
    [
        ("linear", 0, 0.0),
        ("linear", 5, 0.5),  # halfway up
        ("linear", 10, 1.0),
        ("linear", 55, 0.5),
        ("linear", 99, 1 / 90),
        ("linear", 100, 0.0),
        ("linear", 1000, 0.0),
        ("cosine", 0, 0.0),
        ("cosine", 5, 0.5),
        ("cosine", 10, 1.0),
        ("cosine", 40, 0.75),
        ("cosine", 55, 0.5),
        ("cosine", 100, 0.0),
        ("cosine", 1000, 0.0),
    ],
)
def test_the_rate_rises_from_zero_to_the_peak_and_falls_to_zero(decay, step, expected):
    schedule = optim.schedule(TrainConfig(lr=2.0, warmup=0.1, decay=decay), total_steps=100)
    assert float(schedule(step)) == pytest.approx(
        2.0 * expected, rel=FEW_FLOAT32_ROUNDINGS, abs=2 * FEW_FLOAT32_ROUNDINGS
    )


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_without_warm_up_the_first_step_has_the_peak_rate(decay):
    schedule = optim.schedule(TrainConfig(lr=2.0, warmup=0.0, decay=decay), total_steps=100)
    assert float(schedule(0)) == 2.0


@pytest.mark.parametrize("decay", ["linear", "cosine"])
@pytest.mark.parametrize(("warmup", "total_steps"), [(1.0, 4), (0.05, 1), (0.0, 0), (1.0, 1)])
def test_the_shortest_trainings_have_a_finite_rate_that_reaches_the_peak(
    decay, warmup, total_steps
):
    schedule = optim.schedule(TrainConfig(lr=2.0, warmup=warmup, decay=decay), total_steps)
    rates = [float(schedule(step)) for step in range(total_steps + 2)]
    assert all(math.isfinite(rate) for rate in rates)
    assert max(rates) == 2.0


def test_an_unknown_decay_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="expected linear or cosine, found 'square'"):
        optim.schedule(TrainConfig(decay="square"), total_steps=10)


# Clipping


def first_moment(clip_norm, gradient):
    """The gradient that AdamW sees, as its first moment holds it after one step."""
    optimizer = optim.build(TrainConfig(clip_norm=clip_norm), optax.constant_schedule(0.1))
    _, state = jax.jit(optimizer.update)(gradient, optimizer.init(gradient), gradient)
    return jax.tree.map(
        lambda moment: moment / np.float32(0.1), optax.tree_utils.tree_get(state, "mu")
    )


def test_a_gradient_above_the_limit_is_scaled_to_it_as_a_whole():
    seen = first_moment(2.5, {"kernel": jnp.array([[6.0, 0.0]]), "bias": jnp.array([8.0])})
    np.testing.assert_allclose(seen["kernel"], [[1.5, 0.0]], rtol=FEW_FLOAT32_ROUNDINGS)
    np.testing.assert_allclose(seen["bias"], [2.0], rtol=FEW_FLOAT32_ROUNDINGS)


def test_a_gradient_below_the_limit_is_left_alone():
    seen = first_moment(11.0, {"bias": jnp.array([6.0, 8.0])})
    np.testing.assert_allclose(seen["bias"], [6.0, 8.0], rtol=FEW_FLOAT32_ROUNDINGS)


def test_a_limit_of_zero_clips_nothing():
    seen = first_moment(0.0, {"bias": jnp.array([6e6, 8e6])})
    np.testing.assert_allclose(seen["bias"], [6e6, 8e6], rtol=FEW_FLOAT32_ROUNDINGS)


# AdamW


def test_a_bias_correction_keeps_its_digits():
    counts = np.array([1, 2, 3, 10, 100, 1000, 100_000], np.int32)
    for decay in (0.8, 0.9, 0.95, 0.999, 0.9999):
        found = jax.vmap(lambda count, decay=decay: optim.bias_correction(decay, count))(counts)
        np.testing.assert_allclose(
            found, 1.0 - decay ** counts.astype(np.float64), rtol=FEW_FLOAT32_ROUNDINGS
        )


def test_adamw_without_the_parameters_is_an_error():
    optimizer = optim.adamw(0.1)
    params = {"kernel": jnp.ones(2)}
    with pytest.raises(ValueError, match="expected the parameters as third argument"):
        optimizer.update(params, optimizer.init(params))


PARAMS = {"a": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}, "b": jnp.ones(2)}


@pytest.mark.parametrize(
    ("mask", "decayed"),
    [
        (None, ["['a']['bias']", "['a']['kernel']", "['b']"]),
        ({"a": {"kernel": True, "bias": False}, "b": False}, ["['a']['kernel']"]),
        ({"a": False, "b": True}, ["['b']"]),
        (lambda params: {"a": True, "b": False}, ["['a']['bias']", "['a']['kernel']"]),
    ],
)
def test_a_mask_is_a_tree_or_makes_one_and_may_name_whole_branches(mask, decayed):
    optimizer = optim.adamw(0.1, weight_decay=0.5, mask=mask)
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    updates, _ = optimizer.update(zeros, optimizer.init(PARAMS), PARAMS)
    assert sorted(name for name, leaf in named_leaves(updates).items() if np.any(leaf)) == decayed


def test_betas_of_zero_take_the_gradient_of_the_step_alone():
    optimizer = optim.adamw(0.1, b1=0.0, b2=0.0, weight_decay=0.0)
    gradient = {"w": jnp.array([2.0, -3.0])}
    updates, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    assert updates["w"].tolist() == pytest.approx([-0.1, 0.1])


@pytest.mark.parametrize("beta", [-0.1, 1.0, 2.0])
def test_a_beta_outside_of_0_to_1_is_an_error(beta):
    with pytest.raises(ValueError, match=f"b2: expected 0 or more and less than 1, found {beta}"):
        optim.adamw(0.1, b2=beta)


def test_hyperparameters_may_be_injected():
    optimizer = optax.inject_hyperparams(optim.adamw)(learning_rate=0.1, weight_decay=0.0)
    params = {"w": jnp.ones(2)}
    updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
    assert updates["w"].tolist() == pytest.approx([-0.1, -0.1])


@pytest.mark.parametrize("rate", [0.01, lambda count: jnp.float32(0.01)])
def test_updates_have_the_dtype_of_their_parameter_whatever_the_rate_is(rate):
    optimizer, params = optim.adamw(rate), {"w": jnp.ones(2, jnp.bfloat16)}
    updates, state = optimizer.update(params, optimizer.init(params), params)
    assert updates["w"].dtype == state.mu["w"].dtype == jnp.bfloat16
