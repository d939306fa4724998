"""Seeds in; streams of finite, inf and NaN gradients, and what jaxtag's scaler makes of them, out.

Nothing here needs torch, so that what is recorded of it can be checked where it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from loss_cases import raw_bits

from jaxtag import checkpoint, loss_scale
from jaxtag.loss_scale import LossScaleConfig

GRADIENTS = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)


@dataclass(frozen=True)
class Case:
    """So many streams of so many steps under one configuration, all powers of two."""

    number: int
    interval: int
    exponent: int
    """Of the first scale."""
    growth: int = 1
    """Of the growth factor."""
    backoff: int = 1
    streams: int = 200
    steps: int = 50

    @property
    def config(self) -> LossScaleConfig:
        return LossScaleConfig(
            init_scale=2.0**self.exponent,
            growth_factor=2.0**self.growth,
            backoff_factor=0.5**self.backoff,
            growth_interval=self.interval,
            min_scale=0.0,
        )

    @property
    def name(self) -> str:
        factors = f"× 2^{self.growth} and 2^-{self.backoff}"
        return f"interval {self.interval}, from 2^{self.exponent}, {factors}, {self.steps} steps"

    def events(self) -> np.ndarray:
        """Which of GRADIENTS comes at each step, (streams, steps); streams 0 to 50 % bad."""
        bits = raw_bits([self.number, 6], (self.streams, self.steps, 2))
        bad = bits[..., 0] % 1000 < (500 * np.arange(self.streams) // self.streams)[:, None]
        return np.where(bad, 1 + bits[..., 1] % 3, 0).astype(np.int32)


def _cases() -> list[Case]:
    short = [
        (interval, exponent, growth, backoff)
        for interval in (1, 2, 3, 4, 7, 10, 25)
        for exponent in (-120, 0, 16, 122)
        for growth, backoff in ((1, 1), (2, 2))
    ]
    cases = [Case(n, *options, streams=170) for n, options in enumerate(short)]
    long = [(200, 16), (500, 16), (1000, 16), (1999, 16), (2000, 16), (2000, 126)]
    start = len(cases)
    return cases + [Case(start + n, *o, streams=80, steps=2200) for n, o in enumerate(long)]


CASES = _cases()
# Of these the results are recorded: both pairs of factors, every start, and a long stream.
RECORDED = [CASES[number] for number in (0, 9, 18, 27, 33, 44, 55, 60)]
RECORDED_STREAMS = slice(None, None, 17)


def trajectories(case: Case, events: np.ndarray) -> dict[str, np.ndarray]:
    """Scale, tracker and whether it was taken after each step, saved and restored half-way."""

    @jax.jit
    def run(states, events):
        def step(state, event):
            grads = {"w": jnp.asarray(GRADIENTS)[event]}
            _, finite = loss_scale.unscale(state, grads)
            state = loss_scale.update(state, finite, case.config)
            return state, (state.scale, state.growth_tracker, finite)

        return jax.vmap(lambda state, events: jax.lax.scan(step, state, events))(states, events)

    one = loss_scale.init(case.config)
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, len(events)), one)
    parts = []
    for half in np.split(events, 2, axis=1):
        states, found = run(states, half)
        parts.append(jax.device_get(found))
        saved = checkpoint.flatten(states)  # what a checkpoint holds
        states = type(states)(**{name: jnp.asarray(value) for name, value in saved.items()})
    scale, tracker, finite = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    applied = np.asarray(states.applied)
    assert np.array_equal(applied, finite.sum(axis=1))
    assert np.array_equal(np.asarray(states.skipped) + applied, np.full(len(events), case.steps))
    return {"scale": scale, "tracker": tracker, "taken": finite}


def differences(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> int:
    """Steps at which two sets of trajectories are not the same, until the scale leaves float32.

    Under 2^-126 XLA takes numbers for 0: jaxtag's scale stays there, while torch's goes on to 0.
    """
    within = np.minimum.accumulate(expected["scale"] >= loss_scale.SMALLEST, axis=1)
    apart = np.zeros_like(within)
    for name, value in expected.items():
        apart |= found[name] != value
    stays = np.where(within, False, found["scale"] < loss_scale.SMALLEST)
    return int((apart & within).sum() + stays.sum())
