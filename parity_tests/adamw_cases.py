"""Seeds in; parameters and gradients, the same bits everywhere, and jaxtag's AdamW on them out.

Nothing here needs torch, so that what is recorded of it can be checked where it is missing.
"""

from __future__ import annotations

import jax
import numpy as np
import optax
from distances import relative_distance
from loss_cases import nearly_normal, raw_bits

from jaxtag import optim
from jaxtag.config import TrainConfig

STEPS = 1000
SHAPES = {"table": (40, 16), "matrix": (16, 9), "bias": (9, 1)}
SCHEDULE = TrainConfig(lr=5e-3, warmup=0.1, decay="cosine")
# The first names no weight decay, no betas and no epsilon: the defaults are compared as well.
SETTINGS = {
    "defaults": {"lr": 1e-3},
    "no decay": {"lr": 1e-2, "weight_decay": 0.0},
    "strong decay": {"lr": 1e-3, "weight_decay": 0.1},
    "other betas": {"lr": 1e-3, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.01},
    "schedule": {"lr": SCHEDULE.lr, "weight_decay": 0.01},
}


def tensors(seed):
    """First parameters, and each step's gradient: rows of sizes 2^-20 to 1, a fifth of them 0."""
    params, grads = {}, {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        params[name] = (0.5 * nearly_normal([seed, 3 * number], shape)).astype(np.float32)
        rows = raw_bits([seed, 3 * number + 1], (STEPS, shape[0], 1))
        sizes = 0.5 ** (rows[:1] % 21)
        kept = rows % 5 > 0
        values = nearly_normal([seed, 3 * number + 2], (STEPS, *shape))
        grads[name] = (values * sizes * kept).astype(np.float32)
    return params, grads


def trained(params, grads, options, has_schedule):
    """Parameters and both moments after all these gradients, every step in one program."""
    names = dict(options)
    rate = names.pop("lr")
    if "betas" in names:
        names["b1"], names["b2"] = names.pop("betas")
    optimizer = optim.adamw(optim.schedule(SCHEDULE, STEPS) if has_schedule else rate, **names)

    def step(carried, gradient):
        params, state = carried
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda *start: jax.lax.scan(step, start, grads)[0])
    params, state = run(params, optimizer.init(params))
    return params, state.mu, state.nu


def compare(worst, case, found, expected):
    """See parameters and moments, leaf by leaf."""
    names = ("", ", m", ", v")[: len(expected)]
    for part, ours, theirs in zip(names, found, expected, strict=True):
        for leaf, value in theirs.items():
            worst.see("8", relative_distance(ours[leaf], value), f"{case}, {leaf}{part}")
