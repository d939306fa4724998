"""The pure state and functions of loss scaling, after ``torch.amp.GradScaler``."""

from __future__ import annotations

import math
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
        require(0.0 <= self.min_scale <= largest, "min_scale", "0 or more", self.min_scale)
        require(
            max(self.min_scale, SMALLEST) <= self.max_scale <= largest,
            "max_scale",
            "a float32 of at least min_scale",
            self.max_scale,
        )
        require(
            max(self.min_scale, SMALLEST) <= self.init_scale <= self.max_scale,
            "init_scale",
            f"a number from {max(self.min_scale, SMALLEST):g} to {self.max_scale:g}",
            self.init_scale,
        )
        require(1.0 < self.growth_factor < math.inf, "growth_factor", "above 1", self.growth_factor)
        require(
            0.0 < self.backoff_factor < 1.0,
            "backoff_factor",
            "between 0 and 1",
            self.backoff_factor,
        )
        if self.growth_interval is not None:
            require(
                type(self.growth_interval) is int and 1 <= self.growth_interval < 2**31,
                "growth_interval",
                "1 or more, or None",
                self.growth_interval,
            )


def require(holds: bool, name: str, expected: str, found: Any) -> None:
    """Raise ``ValueError`` that says what was expected of a setting, where it does not hold."""
    if not holds:
        raise ValueError(f"{name}: expected {expected}, found {found!r}")


def static(scale: float) -> LossScaleConfig:
    """A scale that stays; steps with an inf or a NaN are skipped."""
    return LossScaleConfig(init_scale=scale, min_scale=min(scale, 2.0**-14), mode="static")


DEFAULTS = LossScaleConfig()
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


def init(config: LossScaleConfig = DEFAULTS) -> LossScaleState:
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
    config: LossScaleConfig = DEFAULTS,
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


def select_applied(state: Any, new: T, old: T) -> T:
    """``new`` where the last step was taken, else ``old``: for what lives outside the optimizer.

    Moving averages of parameters and batch statistics are to be rolled back with a skipped step:
    a forward pass that overflowed has left inf in them.
    """
    finite = find(state).last_finite
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)


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
