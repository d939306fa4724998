"""A train config in; one optax chain out: clip, AdamW with a decay mask, schedule.

Clipping and AdamW follow PyTorch's order of operations, with bias corrections that do not lose
their digits in float32, so that a training ported from PyTorch takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from jaxtag.config import ConfigError, TrainConfig


class AdamWState(NamedTuple):
    """Steps taken, and the running means of the gradient and of its square."""

    count: Int[Array, ""]  # type: ignore[assignment]  # hides tuple.count
    mu: Any
    nu: Any


def build(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Chain clipping by global norm and AdamW under a learning-rate schedule.

    Expects gradients already divided by the token count of the step, and unscaled.
    """
    clip = [clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    steps = adamw(schedule, weight_decay=config.weight_decay, mask=decay_mask)
    return optax.chain(*clip, steps)


def clip_by_global_norm(max_norm: float) -> optax.GradientTransformation:
    """Scale gradients as ``torch.nn.utils.clip_grad_norm_`` does: by max / (norm + 1e-6), if < 1.

    ``optax.clip_by_global_norm`` has no 1e-6, which makes small norms differ: by 5e-5 at a norm
    of 0.02. The norm is that of all leaves together, in float32.
    """

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, Any]:
        del params
        norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), updates))
        scale = jnp.minimum(1.0, max_norm / (norm + 1e-6))
        return jax.tree.map(lambda g: g * scale.astype(g.dtype), updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def adamw(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: float | Array = 0.9,
    b2: float | Array = 0.999,
    eps: float | Array = 1e-8,
    weight_decay: float | Array = 1e-2,
    mask: Any | Callable[[Any], Any] | None = None,
) -> optax.GradientTransformation:
    """AdamW (Loshchilov and Hutter 2019) as ``torch.optim.AdamW`` computes it, and its defaults.

        p ← p · (1 - lr · weight_decay)
        m ← m + (g - m) · (1 - b1);  v ← b2 · v + (1 - b2) · g²
        p ← p - lr / (1 - b1ᵗ) · m / (√v / √(1 - b2ᵗ) + eps)

    ``mask`` is a tree of bools, or maps parameters to one: where False, no weight decay. One for a
    whole branch will do. Numbers are computed in the dtype of their parameter. The bias
    corrections are -expm1(t · log b): 1 - bᵗ computed in float32 is wrong by 1e-5 at the first
    steps. A schedule is read at the number of steps taken before, as after PyTorch's
    ``optimizer.step(); scheduler.step()``.
    """

    for name, beta in (("b1", b1), ("b2", b2)):
        if isinstance(beta, int | float) and not 0.0 <= beta < 1.0:
            raise ValueError(f"{name}: expected 0 or more and less than 1, found {beta}")

    def init(params: Any) -> AdamWState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdamWState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.copy, zeros))

    def update(grads: Any, state: AdamWState, params: Any = None) -> tuple[Any, AdamWState]:
        if params is None:
            raise ValueError("adamw.update: expected the parameters as third argument, found None")
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        count = optax.safe_increment(state.count)
        step_size = rate / bias_correction(b1, count)
        root_correction = jnp.sqrt(bias_correction(b2, count))
        mu = jax.tree.map(lambda m, g: m + (g - m) * (1.0 - b1), state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * (g * g), state.nu, grads)

        def new(p: Any, m: Array, v: Array, decays: bool) -> Array:
            kept = p * jnp.asarray(1.0 - rate * weight_decay, p.dtype) if decays else p
            denominator = jnp.sqrt(v) / root_correction.astype(p.dtype) + eps
            # p + (kept - step - p) gives back kept - step: floats this near subtract exactly.
            return (kept - step_size.astype(p.dtype) * (m / denominator)) - p

        decays = True if mask is None else mask(params) if callable(mask) else mask
        decays = jax.tree.broadcast(decays, params)
        return jax.tree.map(new, params, mu, nu, decays), AdamWState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def schedule(config: TrainConfig, total_steps: int) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then a linear or cosine fall to 0 at ``total_steps``.

    The rates are computed once, in float64, so that each is the float32 nearest to PyTorch's:
    a formula in float32 loses the last rates before 0, where it subtracts nearly equal numbers.
    Past the end the rate stays 0.
    """
    total_steps = max(1, total_steps)
    warmup = min(round(config.warmup * total_steps), total_steps - 1)
    steps = np.arange(total_steps + 1, dtype=np.float64)
    left = (total_steps - steps) / (total_steps - warmup)
    match config.decay:
        case "linear":
            fall = left
        case "cosine":
            fall = np.sin(0.5 * np.pi * left) ** 2  # (1 + cos) / 2 without its cancellation
        case other:
            raise ConfigError(f"train.decay: expected linear or cosine, found {other!r}")
    rise = steps / max(1, warmup)
    rates = np.float32(config.lr * np.where(steps < warmup, rise, fall))
    return lambda count: jnp.asarray(rates)[jnp.minimum(count, total_steps)]


def decay_mask(params: Any) -> Any:
    """Mark what weight decay pulls at: matrices; biases, norms and embeddings are spared.

    >>> decay_mask({"head": {"kernel": 1.0, "bias": 1.0}, "embed": {"words": 1.0}})
    {'embed': {'words': False}, 'head': {'bias': False, 'kernel': True}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) == "kernel", params
    )


def bias_correction(decay: float | Array, count: Int[Array, ""]) -> Float[Array, ""]:
    """1 - decay ** count, to its last digits, in float32, or in float64 where JAX has that on."""
    if isinstance(decay, int | float):
        log: float | Array = math.log(decay) if decay else -math.inf
    else:  # a hyperparameter that is traced
        log = jnp.log(decay)
    return -jnp.expm1(count.astype(jnp.result_type(float)) * log)
