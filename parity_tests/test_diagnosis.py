"""Layers that vanish or overflow are named, and the recommended scale is the largest that holds."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxtag import diagnose, diagnosis, loss_scale, memory, model, optim, step
from jaxtag.batch import Batch
from jaxtag.config import ConfigError, ModelConfig, TrainConfig
from jaxtag.loss_scale import LossScaleConfig
from jaxtag.plan import Shape
from jaxtag.precision import Policy

B, L, C, WORDS = 4, 8, 3, 20


def planted(policy, *, tiny=1.0, huge=1.0):
    """Three layers in a row; the gradient of the first is ``tiny`` times, of the last ``huge``."""
    dtype = Policy(policy).compute_dtype

    def init(key):
        table = jax.random.normal(key, (WORDS, 8))
        return {
            "table": table,
            "first": {"kernel": jnp.eye(8)},
            "middle": {"kernel": jnp.eye(8)},
            "last": {"kernel": jnp.eye(8, C)},
        }

    def apply(params, batch, dropout_key=None):
        x_BLD = params["table"][batch.ids_BL].astype(dtype)
        for name, factor in (("first", tiny), ("middle", 1.0), ("last", huge)):
            kernel = params[name]["kernel"].astype(dtype)
            # Of the kernel's gradient alone, not of what flows on.
            scaled = kernel * dtype(factor) + jax.lax.stop_gradient(kernel * dtype(1.0 - factor))
            x_BLD = x_BLD @ scaled
        return x_BLD.astype(jnp.float32)

    return model.Model(init, apply, Policy(policy))


def recipe_of(policy, scaling=loss_scale.OFF, **factors):
    schedule = optax.constant_schedule(0.1)
    optimizer = optim.build(TrainConfig(), schedule)
    return step.Recipe(planted(policy, **factors), optimizer, schedule, scaling)


def batch_of():
    rng = np.random.default_rng(0)
    ids_BL = rng.integers(2, WORDS, (B, L)).astype(np.int32)
    ones_BL = np.ones((B, L), np.int32)
    labels_BL = rng.integers(0, C, (B, L)).astype(np.int32)
    return Batch(ids_BL, np.zeros((B, L, 0), np.int32), labels_BL, ones_BL, 0 * ones_BL)


def survey_of(scales, **factors):
    recipe = recipe_of("float16", **factors)
    params = recipe.model.init(jax.random.key(0))
    batches = [(batch_of(), np.float32(B * L))]
    reference = planted("float32", **factors)
    best = diagnosis.largest_finite_scale(recipe, params, batches)
    return diagnosis.surveyor(recipe, reference)(params, batches, scales), best


def test_layers_stand_in_the_order_in_which_the_forward_pass_uses_them():
    survey, _ = survey_of([1.0])
    assert [layer.name for layer in survey.layers] == ["table", "first", "middle", "last"]


def test_a_layer_with_tiny_gradients_is_named_with_the_scale_that_keeps_them():
    survey, best = survey_of([2.0**e for e in range(25)], tiny=2.0**-21)
    lost = {layer.name: layer.at[0].flushed for layer in survey.layers}
    assert lost["first"] > 0.5
    assert lost["last"] == 0.0
    verdict = diagnosis.verdict(survey, best)
    assert verdict.startswith("first loses ")
    assert f"the largest that stays finite is 2^{np.log2(best):.0f}" in verdict
    assert "loses none" in verdict


def test_a_layer_that_overflows_is_named():
    survey, best = survey_of([1.0, 2.0**12], huge=2.0**12)
    assert [layer.name for layer in survey.layers if layer.at[1].bad] == ["last"]
    assert best < 2.0**12
    overflowing, _ = survey_of([2.0**20], huge=2.0**12)
    assert diagnosis.verdict(overflowing, best).startswith("last overflows float16")


def test_the_scale_from_which_a_layer_overflows_is_the_first_at_which_it_does():
    scales = [2.0**exponent for exponent in range(25)]
    survey, _ = survey_of(scales, huge=2.0**6)
    last = survey.layers[-1]
    first = last.overflows_from(scales)
    assert first / 2.0 * last.largest <= 65504.0 < first * last.largest


def test_the_recommended_scale_is_finite_and_its_double_is_not():
    _, best = survey_of([1.0])
    survey, _ = survey_of([best, 2.0 * best])
    assert survey.finite(0)
    assert not survey.finite(1)


def test_subnormal_gradients_are_counted_and_bfloat16_has_its_rounding_error():
    survey, _ = survey_of([1.0], tiny=2.0**-10)
    assert survey.layers[1].at[0].subnormal > 0.5
    recipe, reference = recipe_of("bfloat16"), planted("float32")
    params = recipe.model.init(jax.random.key(0))
    found = diagnosis.surveyor(recipe, reference)(params, [(batch_of(), np.float32(B * L))], [1.0])
    for layer in found.layers:
        assert layer.at[0].flushed == layer.at[0].subnormal == 0.0
        assert 2.0**-11 < layer.at[0].error < 2.0**-6


@pytest.mark.parametrize(
    ("scale", "factors", "expected"),
    [
        (2.0**20, {"huge": 2.0**12}, "the first layer with inf in its gradient is last"),
        (1.0, {}, "the same step, taken again, has no inf or NaN"),
    ],
)
def test_the_first_bad_layer_seen_from_the_loss_is_named(scale, factors, expected):
    config = LossScaleConfig(init_scale=scale, min_scale=scale)
    recipe = recipe_of("float16", config, **factors)
    state = step.init_state(recipe)
    found = diagnosis.first_bad_layer(recipe, state, [batch_of()], np.float32(B * L))
    assert expected in found


def recipe_with_transformer(policy):
    config = ModelConfig(kind="transformer", width=64, layers=2, heads=4, feed_forward=256)
    sizes = model.Sizes(words=WORDS, kind="none", parts=1, classes=C)
    schedule = optax.constant_schedule(0.1)
    built = model.build(config, Policy(policy), sizes)
    return step.Recipe(built, optim.build(TrainConfig(), schedule), schedule)


def test_memory_of_a_model_of_100_million_parameters():
    config = ModelConfig(kind="transformer", width=768, layers=12, heads=12, feed_forward=3072)
    sizes = model.Sizes(words=19_500, kind="none", parts=1, classes=9)
    built = model.build(config, Policy("float16"), sizes)
    schedule = optax.constant_schedule(0.1)
    recipe = step.Recipe(built, optim.build(TrainConfig(), schedule), schedule)
    state = jax.eval_shape(lambda: step.init_state(recipe))
    params = memory.size_of(state.params)
    assert params == pytest.approx(400e6, rel=0.01)
    assert memory.size_of(state.opt_state) == pytest.approx(2 * params, rel=1e-3)


def test_the_policy_changes_the_activations_and_no_other_row_of_the_memory_table():
    recipes = {name: recipe_with_transformer(name) for name in ("float32", "float16")}
    (full, half) = memory.memory_of_steps(recipes, batch_of(), [Shape(8, 64)])
    for name in ("parameters", "gradients", "optimizer"):
        assert full[name] == half[name] > 0
    assert 0.5 <= half["kept"] / full["kept"] < 0.75  # softmax, norms, sums stay float32


# The command


def test_the_command_writes_a_picture_and_the_numbers(trained, tmp_path, capsys):
    diagnose.main([f"--run={trained.run}", "--batches=1", f"--output={tmp_path}"])
    printed = capsys.readouterr().out
    assert "gradients, layer by layer" in printed
    assert "--precision.init-scale" in printed
    report = json.loads((tmp_path / "diagnosis.json").read_text())
    assert [layer["name"] for layer in report["surveys"]["float16"]["layers"]][-1] == "head"
    assert len(report["surveys"]["float16"]["scales"]) == 25
    assert (tmp_path / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_the_number_of_batches_is_checked():
    with pytest.raises(ConfigError, match="batches: expected a whole number from 1"):
        diagnose.DiagnoseConfig(batches=0)
