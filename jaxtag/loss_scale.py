"""A loss in; gradients that float16 can hold, checked and unscaled, out.

float16 keeps nothing below 6e-8 and nothing above 65,504. The loss is multiplied by a scale, so
that gradients lie in between; they are divided by it again before anything reads them, and a
step whose gradient has an inf or a NaN is skipped: it changes nothing but the scale. The scale
follows ``torch.amp.GradScaler``: it falls at each such step, and grows after so many good ones.

``loss_scaled`` puts this around a whole optax optimizer, since only what is outside of moments,
weight decay and schedule can leave them as they were:

>>> import optax
>>> optimizer = loss_scaled(optax.sgd(0.5), LossScaleConfig(init_scale=4.0))
>>> params = jnp.ones(2)
>>> state = optimizer.init(params)
>>> for gradient in (jnp.array([1.0, -1.0]), jnp.array([jnp.inf, 1.0])):
...     scaled = scale_loss(state, gradient)    # what a backward pass of the scaled loss gives
...     updates, state = optimizer.update(scaled, state, params)
...     params = optax.apply_updates(params, updates)
>>> params
Array([0.5, 1.5], dtype=float32)
>>> find(state)._asdict()
{'scale': Array(2., dtype=float32), 'growth_tracker': Array(0, dtype=int32),
 'applied': Array(1, dtype=int32), 'skipped': Array(1, dtype=int32),
 'consecutive_skips': Array(1, dtype=int32), 'last_finite': Array(False, dtype=bool),
 'stuck': Array(False, dtype=bool)}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

SMALLEST = 2.0**-126
"""The smallest scale: XLA takes smaller numbers for 0."""

T = TypeVar("T")


@dataclass(frozen=True)
class LossScaleConfig:
    """How the scale moves; the defaults are GradScaler's, with a floor and a ceiling besides.

    Powers of two divide and multiply without rounding; other factors work, and drift from
    PyTorch's in the last digits. ``ValueError`` names what cannot work.
    """

    init_scale: float = 2.0**16
    growth_factor: float = 2.0
    """What the scale is multiplied by after ``growth_interval`` good steps."""
    backoff_factor: float = 0.5
    """What it is multiplied by after a step with an inf or a NaN."""
    growth_interval: int | None = 2000
    """Good steps in a row before the scale grows; None: it never does."""
    min_scale: float = 2.0**-14
    """0 for PyTorch's behaviour down to 2^-126, where the scale stays."""
    max_scale: float = 2.0**127
    mode: Literal["dynamic", "static", "off"] = "dynamic"
    """static: the scale stays, steps are skipped; off: scale 1, and no step is ever skipped."""

    def __post_init__(self) -> None:
        if self.mode not in ("dynamic", "static", "off"):
            raise ValueError(f"mode: expected dynamic, static or off, found {self.mode!r}")
        largest = float(np.finfo(np.float32).max)
        _require(0.0 <= self.min_scale <= largest, "min_scale", "0 or more", self.min_scale)
        _require(
            max(self.min_scale, SMALLEST) <= self.max_scale <= largest,
            "max_scale",
            "a float32 of at least min_scale",
            self.max_scale,
        )
        _require(
            max(self.min_scale, SMALLEST) <= self.init_scale <= self.max_scale,
            "init_scale",
            f"a number from {max(self.min_scale, SMALLEST):g} to {self.max_scale:g}",
            self.init_scale,
        )
        _require(
            1.0 < self.growth_factor < math.inf, "growth_factor", "above 1", self.growth_factor
        )
        _require(
            0.0 < self.backoff_factor < 1.0,
            "backoff_factor",
            "between 0 and 1",
            self.backoff_factor,
        )
        if self.growth_interval is not None:
            _require(
                type(self.growth_interval) is int and 1 <= self.growth_interval < 2**31,
                "growth_interval",
                "1 or more, or None",
                self.growth_interval,
            )


def _require(holds: bool, name: str, expected: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{name}: expected {expected}, found {found!r}")


def static(scale: float) -> LossScaleConfig:
    """A scale that stays; steps with an inf or a NaN are skipped."""
    return LossScaleConfig(init_scale=scale, min_scale=min(scale, 2.0**-14), mode="static")


OFF = LossScaleConfig(init_scale=1.0, mode="off")
"""No scaling and no check, in the same types: for float32 and bfloat16."""


class LossScaleState(NamedTuple):
    """All that scaling remembers."""

    scale: Float[Array, ""]
    """float32, never 0, inf or NaN."""
    growth_tracker: Int[Array, ""]
    """Good steps since the scale last moved, int32."""
    applied: Int[Array, ""]
    """Steps taken, int32: what a schedule outside of the optimizer counts by."""
    skipped: Int[Array, ""]
    consecutive_skips: Int[Array, ""]
    last_finite: Bool[Array, ""]
    """Whether the last step was taken."""
    stuck: Bool[Array, ""]
    """Whether it was skipped although the scale was at its smallest."""


def init(config: LossScaleConfig = LossScaleConfig()) -> LossScaleState:
    """Begin at ``config.init_scale``, or at 1 where nothing is scaled."""
    scale = 1.0 if config.mode == "off" else config.init_scale
    return LossScaleState(
        scale=jnp.asarray(scale, jnp.float32),
        growth_tracker=jnp.zeros((), jnp.int32),
        applied=jnp.zeros((), jnp.int32),
        skipped=jnp.zeros((), jnp.int32),
        consecutive_skips=jnp.zeros((), jnp.int32),
        last_finite=jnp.ones((), jnp.bool_),
        stuck=jnp.zeros((), jnp.bool_),
    )


def find(state: Any) -> LossScaleState:
    """The one scaling state inside an optimizer's state, or the state itself.

    ``ValueError`` where there is none, or more than one.
    """
    leaves = jax.tree.leaves(state, is_leaf=_is_state)
    found = [leaf for leaf in leaves if _is_state(leaf)]
    if len(found) != 1:
        raise ValueError(
            f"expected one LossScaleState inside the state, found {len(found)}; "
            "pass the one that is meant"
        )
    return found[0]


def _is_state(node: Any) -> bool:
    return isinstance(node, LossScaleState)


def scale_loss(state: Any, loss: Float[Array, ...]) -> Float[Array, ...]:
    """The loss in float32 times the scale; what is differentiated.

    ``state`` is a ``LossScaleState`` or an optimizer state that holds one. A float16 loss is cast
    first: at 65,536 its cotangent would be infinite.
    """
    return jnp.asarray(loss, jnp.float32) * find(state).scale


def unscale(state: Any, grads: T) -> tuple[T, Bool[Array, ""]]:
    """Gradients in float32 divided by the scale, and whether all of them are finite.

    They are divided: 1 / 2^127 would be 0 in XLA. The check is of the quotients, and one of
    gradients before could find no more: inf and NaN stay so, and a tiny scale may make an inf.
    """
    scale = find(state).scale
    divided = jax.tree.map(lambda g: jnp.asarray(g, jnp.float32) / scale, grads)
    return divided, all_finite(divided)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether no number of a tree is inf or NaN."""
    leaves = jax.tree.leaves(tree)
    if not leaves:
        return jnp.ones((), jnp.bool_)
    # The norm takes half the time of looking at each number. It is also infinite where only the
    # squares are: then the numbers are looked at.
    return jax.lax.cond(
        jnp.isfinite(optax.tree.norm(tree)),
        lambda: jnp.ones((), jnp.bool_),
        lambda: jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]).all(),
    )


def update(
    state: LossScaleState,
    finite: bool | Bool[Array, ""],
    config: LossScaleConfig = LossScaleConfig(),
) -> LossScaleState:
    """Move the scale and the counts after a step, as ``GradScaler.update`` does.

    Growth that would pass ``max_scale`` is left out, and the tracker starts anew. The tracker is
    compared by >=, PyTorch's by ==: a scaler that is loaded with a shorter interval does not grow
    there until the next overflow.
    """
    finite = jnp.asarray(finite, jnp.bool_)
    one = jnp.int32(1)
    counted = state._replace(
        applied=state.applied + finite,
        skipped=state.skipped + ~finite,
        consecutive_skips=jnp.where(finite, 0, state.consecutive_skips + one),
        last_finite=finite,
        stuck=jnp.zeros((), jnp.bool_),
    )
    if config.mode != "dynamic":
        return counted
    good = state.growth_tracker + one
    grows = finite & (good >= config.growth_interval if config.growth_interval else False)
    floor = jnp.float32(max(config.min_scale, SMALLEST))
    # A scale from elsewhere that is under the floor is not raised to it by an overflow.
    lower = jnp.minimum(state.scale, jnp.maximum(state.scale * config.backoff_factor, floor))
    grown = state.scale * config.growth_factor
    higher = jnp.where(grown <= config.max_scale, grown, state.scale)
    return counted._replace(
        stuck=~finite & (state.scale <= floor),
        scale=jnp.where(finite, jnp.where(grows, higher, state.scale), lower),
        growth_tracker=jnp.where(finite & ~grows, good, 0),
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
    config: LossScaleConfig = LossScaleConfig(),
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
    _require(type(accumulate) is int and accumulate >= 1, "accumulate", "1 or more", accumulate)
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


def select_applied(state: Any, new: T, old: T) -> T:
    """``new`` where the last step was taken, else ``old``: for what lives outside the optimizer.

    Moving averages of parameters and batch statistics are to be rolled back with a skipped step:
    a forward pass that overflowed has left inf in them.
    """
    finite = find(state).last_finite
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)


def to_torch(state: Any, config: LossScaleConfig) -> dict[str, Any]:
    """The five numbers that ``GradScaler.load_state_dict`` takes.

    ``ValueError`` where the scale does not move: a GradScaler's always does.
    """
    _require(config.mode == "dynamic", "mode", "dynamic", config.mode)
    found = jax.device_get(find(state))
    return {
        "scale": float(found.scale),
        "growth_factor": config.growth_factor,
        "backoff_factor": config.backoff_factor,
        "growth_interval": 0 if config.growth_interval is None else config.growth_interval,
        "_growth_tracker": int(found.growth_tracker),
    }


def from_torch(saved: Mapping[str, Any]) -> tuple[LossScaleState, LossScaleConfig]:
    """A scaler's state and settings out of ``GradScaler.state_dict()``.

    ``ValueError`` where it is that of a disabled scaler (empty), or its scale is one from which
    PyTorch itself does not come back: 0 or below 2^-126, infinite.
    """
    names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
    missing = [name for name in names if name not in saved]
    if missing:
        raise ValueError(
            f"state_dict: expected the five numbers of an enabled scaler, no {missing}"
        )
    config = LossScaleConfig(
        init_scale=float(saved["scale"]),
        growth_factor=float(saved["growth_factor"]),
        backoff_factor=float(saved["backoff_factor"]),
        growth_interval=int(saved["growth_interval"]) or None,
        min_scale=0.0,
        max_scale=float(np.finfo(np.float32).max),
    )
    tracker = jnp.asarray(saved["_growth_tracker"], jnp.int32)
    return init(config)._replace(growth_tracker=tracker), config


def alarm(state: Any, *, max_skips: int) -> str | None:
    """What is wrong where so many steps in a row were skipped, or one at the smallest scale.

    To be asked on the host now and then: fetches the state.
    """
    found = jax.device_get(find(state))
    skips, scale = int(found.consecutive_skips), float(found.scale)
    if found.stuck:
        return f"the last {skips:,} steps were skipped, down to the smallest loss scale, {scale:g}"
    if skips >= max_skips:
        return f"the last {skips:,} steps were skipped; the loss scale is {scale:g}"
    return None
