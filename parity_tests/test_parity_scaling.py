"""Loss scaling against GradScaler: ten thousand streams, and whole trainings in 16 bits."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scaler_cases
import taggers
import torch
import torch_scaler
import torch_taggers
from loss_cases import Worst
from torch.amp.grad_scaler import GradScaler

from jaxtag import precision
from jaxtag.loss_scale import find, loss_scaled, scale_loss
from torch_ref.precision import Policy

pytestmark = pytest.mark.parity
FLOAT16 = precision.Policy("float16")


def agree(parity, cases, streams):
    worst = Worst(parity)
    for case in cases:
        events = case.events()[streams]
        found = scaler_cases.trajectories(case, events)
        expected = torch_scaler.trajectories(case, events)
        worst.see("16", scaler_cases.differences(found, expected), case.name, events.size)
    worst.check()


def test_the_scale_follows_gradscaler_through_streams_of_good_and_bad_steps(parity):
    agree(parity, scaler_cases.CASES[3:56:13], slice(5, None, 12))


@pytest.mark.long
def test_the_scale_follows_gradscaler_through_ten_thousand_streams(parity):
    assert sum(case.streams for case in scaler_cases.CASES) >= 10_000
    assert sum(case.streams * case.steps for case in scaler_cases.CASES) >= 1_000_000
    agree(parity, scaler_cases.CASES, slice(None))


def torch_trace(factor, shrink, steps):
    """(scale, scaled gradient, parameter) of so many steps on a float32 weight used in float16."""
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler("cpu")
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (weight.half() * torch.tensor(factor).half()).float() * shrink
        scaled = scaler.scale(loss)
        scale = scaler.get_scale()
        scaled.backward()
        gradient = float(weight.grad)
        scaler.step(optimizer)
        scaler.update()
        found.append((scale, gradient, float(weight.detach())))
    return found


def jaxtag_trace(factor, shrink, steps):
    optimizer = loss_scaled(optax.sgd(1.0))

    @functools.partial(jax.jit, compiler_options=FLOAT16.compiler_options)
    def gradient(state, weight):
        def loss(weight):
            product = (weight.astype(jnp.float16) * jnp.float16(factor)).astype(jnp.float32)
            return scale_loss(state, product * jnp.float32(shrink))

        return jax.grad(loss)(weight)

    weight = jnp.float32(0.0)
    state, found = optimizer.init(weight), []
    for _ in range(steps):
        scale, scaled = float(find(state).scale), gradient(state, weight)
        updates, state = optimizer.update(scaled, state, weight)
        weight = optax.apply_updates(weight, updates)
        found.append((scale, float(scaled), float(weight)))
    return found


def test_a_gradient_of_2_is_skipped_twice_and_applied_at_16384_as_by_torch():
    trace = jaxtag_trace(2.0, 1.0, steps=3)
    assert trace == torch_trace(2.0, 1.0, steps=3)
    assert [scale for scale, _, _ in trace] == [65536.0, 32768.0, 16384.0]
    assert trace[-1] == (16384.0, 32768.0, -2.0)


def test_a_gradient_of_1e_8_comes_through_the_scale_as_by_torch():
    ((scale, scaled, weight),) = jaxtag_trace(1.0, 1e-8, steps=1)
    assert [(scale, scaled, weight)] == torch_trace(1.0, 1e-8, steps=1)
    assert (scaled, weight) == (6.551742553710938e-4, -6.551742553710938e-4 / 65536.0)


# Trainings


def trainings_agree(worst, kind, policies, steps, seed):
    """Compare jaxtag's training in 16 bits with torch's, and torch's with its own in float32."""
    encoded, start = taggers.corpus(seed, sentences=16_000), taggers.start(kind, seed)
    groups = taggers.groups(encoded, steps, seed)
    for policy in policies:
        theirs = torch_taggers.train(
            torch_taggers.tagger(kind, start, policy=policy), encoded, groups
        )
        ours = taggers.train(kind, start, encoded, groups, policy.name)
        case = f"{kind}, {policy.casts} casts, seed {seed}"
        if policy.name == "float16":
            differ = np.flatnonzero(np.not_equal(ours.scales, theirs.scales))
            first = differ[:1].tolist()
            named = "".join(f", from step {n + 1}: {ours.largest[n]:g}" for n in first)
            worst.see("17a", differ.size, case + named, steps)
            moves = np.diff(np.log2([taggers.SCALING.init_scale, *ours.scales]))
            assert moves.min() < 0 < moves.max()
        scales = [theirs.scales[0] if policy.name == "bfloat16" else taggers.SCALING.init_scale]
        scales += theirs.scales
        skipped = [n for n in range(steps) if scales[n + 1] < scales[n]]
        # Otherwise a skipped step would put float32 ahead by one, and make its distance large.
        exact = torch_taggers.train(torch_taggers.tagger(kind, start), encoded, groups, skipped)
        apart = np.abs(np.subtract(ours.losses, theirs.losses))
        own = np.abs(np.subtract(exact.losses, theirs.losses))
        claim = "17b" if policy.name == "float16" else "17c"
        worst.see(claim, apart.mean() / own.mean(), case, steps)


def test_forty_steps_in_float16_have_the_scales_and_losses_of_torchs(parity):
    worst = Worst(parity)
    trainings_agree(worst, "transformer", [Policy("float16", "explicit")], steps=40, seed=0)
    worst.check()


POLICIES = [Policy(name, "explicit") for name in ("float16", "bfloat16")]
AUTOCAST = [Policy(name, "autocast") for name in ("float16", "bfloat16")]


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("kind", "policies"), [("bilstm", POLICIES), ("transformer", POLICIES + AUTOCAST)]
)
def test_300_steps_in_16_bits_have_the_scales_and_losses_of_torchs(parity, kind, policies, seed):
    worst = Worst(parity)
    trainings_agree(worst, kind, policies, steps=300, seed=seed)
    worst.check()
