"""One optimizer step, one evaluation step, one prediction step: pure functions, then jit.

    loss     = sum of per-token losses / tokens of the whole optimizer step · loss scale
    gradient = d loss / d parameters, summed over micro-batches and devices
    update   = unscale, check, clip, AdamW; or nothing at all, where the gradient is not finite

Nothing is averaged twice: labels are known before the step, so the count of its tokens is too,
and what is differentiated has already been divided by it: float16 could not hold a sum's gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from jaxtag import losses, metrics
from jaxtag.batch import Batch
from jaxtag.device import Devices
from jaxtag.loss_scale import OFF, LossScaleConfig, LossScaledState, loss_scaled, take_step
from jaxtag.model import Model, Params


class TrainState(NamedTuple):
    """All that a step changes."""

    params: Params
    opt_state: LossScaledState
    step: Int[Array, ""]
    """Optimizer steps taken, int32; those skipped for an overflow are not among them."""


class StepSums(NamedTuple):
    """What a step adds to the metrics; the sums of micro-batches and batches add."""

    loss: losses.LossSum
    tokens: metrics.TokenCounts


@dataclass(frozen=True)
class Recipe:
    """What a training's steps are made of, the same from the first to the last."""

    model: Model
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule
    scaling: LossScaleConfig = OFF
    """What is put around the optimizer."""
    seed: int = 0
    class_weights_C: Float[np.ndarray, " C"] | None = None
    label_smoothing: float = 0.0


def init_state(recipe: Recipe) -> TrainState:
    """Make parameters from the seed, and the optimizer state that belongs to them."""
    params = recipe.model.init(jax.random.fold_in(jax.random.key(recipe.seed), 0))
    optimizer = loss_scaled(recipe.optimizer, recipe.scaling)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def gradient(
    recipe: Recipe,
    params: Params,
    batch: Batch,
    step_count: Float[Array, ""],
    dropout_key: Key[Array, ""] | None,
    scale: float | Float[Array, ""] = 1.0,
) -> tuple[Params, StepSums]:
    """This batch's part of the optimizer step's gradient times ``scale``, and its sums.

    ``step_count`` is the loss count of the whole optimizer step, all micro-batches and devices
    included; the parts of the micro-batches add up to the step's gradient.
    """

    def objective(params: Params) -> tuple[Float[Array, ""], StepSums]:
        logits_BLC = recipe.model.apply(params, batch, dropout_key)
        loss = losses.masked_token_loss(
            logits_BLC,
            batch.labels_BL,
            class_weights_C=_weights(recipe),
            label_smoothing=recipe.label_smoothing,
        )
        sums = StepSums(loss, metrics.token_counts(logits_BLC, batch.labels_BL))
        return loss.total / jnp.where(step_count > 0, step_count, 1.0) * scale, sums

    return jax.grad(objective, has_aux=True)(params)


def current_scale(recipe: Recipe, state: TrainState) -> float | Float[Array, ""]:
    """What this step's loss is multiplied by; 1 without scaling."""
    return 1.0 if recipe.scaling.mode == "off" else state.opt_state.loss_scale.scale


def _weights(recipe: Recipe) -> Float[Array, " C"] | None:
    return None if recipe.class_weights_C is None else jnp.asarray(recipe.class_weights_C)


def apply_gradient(
    recipe: Recipe, state: TrainState, grads: Params, step_count: Float[Array, ""]
) -> TrainState:
    """Take one optimizer step, or skip it; where no token counted, change nothing at all."""

    def update(state: TrainState) -> TrainState:
        params, opt_state = take_step(
            recipe.optimizer, recipe.scaling, grads, state.opt_state, state.params
        )
        return TrainState(params, opt_state, state.step + opt_state.loss_scale.last_finite)

    return jax.lax.cond(step_count > 0, update, lambda state: state, state)


def train_step(
    recipe: Recipe, state: TrainState, batch: Batch, step_count: Float[Array, ""]
) -> tuple[TrainState, StepSums]:
    """One optimizer step on one batch."""
    key = dropout_key(recipe, state.step, micro_batch=0)
    scale = current_scale(recipe, state)
    grads, sums = gradient(recipe, state.params, batch, step_count, key, scale)
    return apply_gradient(recipe, state, grads, step_count), sums


def accumulate_step(
    recipe: Recipe,
    state: TrainState,
    accumulated: Params,
    batch: Batch,
    step_count: Float[Array, ""],
    micro_batch: Int[Array, ""],
) -> tuple[Params, StepSums]:
    """Add one micro-batch's part to the gradient of the optimizer step, scaled as all of it."""
    key = dropout_key(recipe, state.step, micro_batch)
    scale = current_scale(recipe, state)
    grads, sums = gradient(recipe, state.params, batch, step_count, key, scale)
    return jax.tree.map(jnp.add, accumulated, grads), sums


def dropout_key(
    recipe: Recipe, step: Int[Array, ""], micro_batch: int | Int[Array, ""]
) -> Key[Array, ""]:
    """Key of one micro-batch's dropout: a function of (seed, step, micro-batch) alone."""
    key = jax.random.fold_in(jax.random.key(recipe.seed), 1)  # 0 is the parameters' stream
    return jax.random.fold_in(jax.random.fold_in(key, step), micro_batch)


def eval_step(model: Model, params: Params, batch: Batch) -> tuple[StepSums, Int[Array, "B L"]]:
    """Unweighted, unsmoothed sums of one batch, and the best label of every cell."""
    logits_BLC = model.apply(params, batch)
    sums = StepSums(
        losses.masked_token_loss(logits_BLC, batch.labels_BL),
        metrics.token_counts(logits_BLC, batch.labels_BL),
    )
    return sums, jnp.argmax(logits_BLC, axis=-1).astype(jnp.int32)


def predict_step(model: Model, params: Params, batch: Batch) -> Int[Array, "B L"]:
    """The best label of every cell; of equal logits, the first class."""
    return jnp.argmax(model.apply(params, batch), axis=-1).astype(jnp.int32)


@dataclass(frozen=True)
class TrainPrograms:
    """The training steps compiled for a mesh; each compiles once per batch shape."""

    train: Callable[..., tuple[TrainState, StepSums]]
    """(state, batch, step_count); the state is donated."""
    accumulate: Callable[..., tuple[Params, StepSums]]
    """(state, accumulated, batch, step_count, micro_batch); the gradients are donated."""
    zeros: Callable[[Params], Params]
    """(parameters); where the accumulated gradients begin."""
    apply: Callable[..., TrainState]
    """(state, accumulated, step_count); the state is donated."""


def train_programs(recipe: Recipe, devices: Devices) -> TrainPrograms:
    """Jit the training steps, rows of the batch split over the devices, all else on each."""
    rows, whole = devices.rows, devices.whole
    jit = functools.partial(jax.jit, compiler_options=recipe.model.policy.compiler_options)

    def train(state, batch, step_count):  # type: ignore[no-untyped-def]
        return train_step(recipe, state, batch, step_count)

    def accumulate(state, accumulated, batch, step_count, micro_batch):  # type: ignore[no-untyped-def]
        return accumulate_step(recipe, state, accumulated, batch, step_count, micro_batch)

    def apply(state, accumulated, step_count):  # type: ignore[no-untyped-def]
        return apply_gradient(recipe, state, accumulated, step_count)

    def zeros(params):  # type: ignore[no-untyped-def]
        return jax.tree.map(jnp.zeros_like, params)

    return TrainPrograms(
        train=jit(
            train, in_shardings=(whole, rows, whole), out_shardings=whole, donate_argnums=(0,)
        ),
        accumulate=jit(
            accumulate,
            in_shardings=(whole, whole, rows, whole, whole),
            out_shardings=whole,
            donate_argnums=(1,),
        ),
        zeros=jit(zeros, in_shardings=(whole,), out_shardings=whole),
        apply=jit(
            apply, in_shardings=(whole, whole, whole), out_shardings=whole, donate_argnums=(0,)
        ),
    )


def eval_program(
    model: Model, devices: Devices
) -> Callable[[Params, Batch], tuple[StepSums, Int[Array, "B L"]]]:
    """Jit the evaluation step."""

    def evaluate(params: Params, batch: Batch) -> tuple[StepSums, Int[Array, "B L"]]:
        return eval_step(model, params, batch)

    return jax.jit(
        evaluate,
        in_shardings=(devices.whole, devices.rows),
        out_shardings=(devices.whole, devices.rows),
        compiler_options=model.policy.compiler_options,
    )


def predict_program(model: Model, devices: Devices) -> Callable[[Params, Batch], Int[Array, "B L"]]:
    """Jit the prediction step."""

    def predict(params: Params, batch: Batch) -> Int[Array, "B L"]:
        return predict_step(model, params, batch)

    return jax.jit(
        predict,
        in_shardings=(devices.whole, devices.rows),
        out_shardings=devices.rows,
        compiler_options=model.policy.compiler_options,
    )
