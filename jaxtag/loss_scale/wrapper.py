"""Loss scaling around a whole optax optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from jaxtag.loss_scale.scaler import (
    DEFAULTS,
    LossScaleConfig,
    LossScaleState,
    init,
    require,
    unscale,
    update,
)


class LossScaledState(NamedTuple):
    """State of ``loss_scaled``; the optimizer's own is ``inner``."""

    loss_scale: LossScaleState
    inner: optax.OptState
    accumulated: Any
    """Sum of the scaled gradients of the window so far, float32; empty without accumulation."""
    micro_step: Int[Array, ""]


def loss_scaled(
    inner: optax.GradientTransformation,
    config: LossScaleConfig = DEFAULTS,
    *,
    accumulate: int = 1,
) -> optax.GradientTransformationExtraArgs:
    """Wrap a whole optimizer, clipping and schedule included, so that it takes scaled gradients.

    ``update`` unscales, checks, casts to the parameters' dtypes and calls ``inner.update``, or
    skips: then ``inner``'s state stays as it is to the bit, schedules inside do not advance, and
    the updates are -0.0, since p + -0.0 is p even where p is -0.0. Works under jit, vmap, scan,
    donation and sharding.

    With ``accumulate``, the gradients of so many calls are added up and only the last of them
    takes a step; the scale is constant in between, and a call with an inf or NaN discards its own
    window and no other. The losses of a window are to be divided by what all of it counts.
    """
    require(type(accumulate) is int and accumulate >= 1, "accumulate", "1 or more", accumulate)
    inner = optax.with_extra_args_support(inner)

    def init_fn(params: Any) -> LossScaledState:
        if any(jnp.asarray(leaf).dtype == jnp.float16 for leaf in jax.tree.leaves(params)):
            raise ValueError(
                "expected float32 parameters, found float16, which cannot hold unscaled "
                "gradients; keep parameters in float32 and cast them where they are used"
            )
        zeros = ()
        if accumulate > 1:
            zeros = jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), jnp.float32), params)
        return LossScaledState(init(config), inner.init(params), zeros, jnp.zeros((), jnp.int32))

    def step(
        grads: Any, state: LossScaledState, params: Any, **extra: Any
    ) -> tuple[Any, LossScaledState]:
        def take(unscaled: Any) -> tuple[Any, optax.OptState]:
            return inner.update(unscaled, state.inner, params, **extra)

        return _take_or_skip(config, grads, state, params, take, skip=_nothing)

    def update_fn(
        updates: Any, state: LossScaledState, params: Any = None, **extra: Any
    ) -> tuple[Any, LossScaledState]:
        if accumulate == 1:
            return step(updates, state, params, **extra)
        total = jax.tree.map(
            lambda a, g: a + jnp.asarray(g, jnp.float32), state.accumulated, updates
        )

        def close_window() -> tuple[Any, LossScaledState]:
            updates, closed = step(total, state, params, **extra)
            # Set to 0, not multiplied by it: 0 · inf is NaN for ever.
            zeros = jax.tree.map(jnp.zeros_like, total)
            return updates, closed._replace(accumulated=zeros, micro_step=jnp.int32(0))

        def go_on() -> tuple[Any, LossScaledState]:
            later = state._replace(accumulated=total, micro_step=state.micro_step + jnp.int32(1))
            return _nothing(jax.eval_shape(close_window)[0]), later

        return jax.lax.cond(state.micro_step == accumulate - 1, close_window, go_on)

    return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _nothing(updates: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, -0.0, leaf.dtype), updates)


def take_step(
    inner: optax.GradientTransformation,
    config: LossScaleConfig,
    grads: Any,
    state: LossScaledState,
    params: Any,
) -> tuple[Any, LossScaledState]:
    """The update of ``loss_scaled(inner, config)`` and ``optax.apply_updates``, in one.

    Returns the parameters, after a skipped step the old ones to the bit, subnormal ones too, and
    the state. It saves a pass over the parameters.
    """

    def take(unscaled: Any) -> tuple[Any, optax.OptState]:
        updates, inner_state = inner.update(unscaled, state.inner, params)
        return optax.apply_updates(params, updates), inner_state

    return _take_or_skip(config, grads, state, params, take, skip=lambda _: params)


def _take_or_skip(
    config: LossScaleConfig,
    grads: Any,
    state: LossScaledState,
    params: Any,
    take: Callable[[Any], tuple[Any, optax.OptState]],
    skip: Callable[[Any], Any],
) -> tuple[Any, LossScaledState]:
    """Unscale, check, and ``take`` the gradients, or ``skip``, given the shapes of its outcome."""

    def as_parameters(grads: Any) -> Any:  # moments have the dtype of their parameter
        if params is None:
            return grads
        return jax.tree.map(lambda g, p: jnp.asarray(g, p.dtype), grads, params)

    if config.mode == "off":
        outcome, inner_state = take(as_parameters(grads))
        finite = jnp.ones((), jnp.bool_)
    else:
        unscaled, finite = unscale(state.loss_scale, grads)
        unscaled = as_parameters(unscaled)
        outcome, inner_state = jax.lax.cond(
            finite,
            lambda: take(unscaled),
            lambda: (skip(jax.eval_shape(take, unscaled)[0]), state.inner),
        )
    scale = update(state.loss_scale, finite, config)
    return outcome, state._replace(loss_scale=scale, inner=inner_state)
