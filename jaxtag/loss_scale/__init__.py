"""A loss in; gradients that float16 can hold, checked and unscaled, out.

float16 keeps nothing below 6e-8 and nothing above 65,504. The loss is multiplied by a scale, so
that gradients lie in between; they are divided by it again before anything reads them, and a
step whose gradient has an inf or a NaN is skipped: it changes nothing but the scale. The scale
follows ``torch.amp.GradScaler``: it falls at each such step, and grows after so many good ones.

``loss_scaled`` puts this around a whole optax optimizer, since only what is outside of moments,
weight decay and schedule can leave them as they were:

>>> import jax.numpy as jnp
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

from jaxtag.loss_scale.scaler import (
    OFF,
    SMALLEST,
    LossScaleConfig,
    LossScaleState,
    alarm,
    all_finite,
    find,
    init,
    scale_loss,
    select_applied,
    static,
    unscale,
    update,
)
from jaxtag.loss_scale.torch_state import from_torch, to_torch
from jaxtag.loss_scale.wrapper import LossScaledState, loss_scaled, take_step

__all__ = [
    "OFF",
    "SMALLEST",
    "LossScaleConfig",
    "LossScaleState",
    "LossScaledState",
    "alarm",
    "all_finite",
    "find",
    "from_torch",
    "init",
    "loss_scaled",
    "scale_loss",
    "select_applied",
    "static",
    "take_step",
    "to_torch",
    "unscale",
    "update",
]
