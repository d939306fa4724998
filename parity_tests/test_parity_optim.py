"""AdamW, both schedules and clipping: a thousand steps, every step, every size of gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from loss_cases import Worst
from torch.optim.lr_scheduler import LambdaLR

from jaxtag import optim
from jaxtag.config import TrainConfig
from torch_ref.optim import schedule_factor

pytestmark = pytest.mark.parity

# AdamW

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
    """First parameters, and each step's gradient: rows of sizes 1e-6 to 1, a fifth of them 0."""
    rng = np.random.default_rng(seed)
    params, grads = {}, {}
    for name, shape in SHAPES.items():
        params[name] = rng.normal(0.0, 0.5, shape).astype(np.float32)
        sizes = 10.0 ** rng.uniform(-6.0, 0.0, (1, shape[0], 1))
        kept = rng.random((STEPS, shape[0], 1)) >= 0.2
        grads[name] = (rng.normal(size=(STEPS, *shape)) * sizes * kept).astype(np.float32)
    return params, grads


def torch_trained(params, grads, options, has_schedule):
    """Parameters and both moments after the last of these gradients."""
    leaves = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in params.items()}
    optimizer = torch.optim.AdamW(leaves.values(), **options)
    factor = schedule_factor(SCHEDULE, STEPS) if has_schedule else lambda step: 1.0
    scheduler = LambdaLR(optimizer, factor)
    for number in range(len(next(iter(grads.values())))):
        for name, leaf in leaves.items():
            leaf.grad = torch.tensor(grads[name][number])
        optimizer.step()
        scheduler.step()
    state = {name: optimizer.state[leaf] for name, leaf in leaves.items()}
    return (
        {name: leaf.detach().numpy() for name, leaf in leaves.items()},
        {name: held["exp_avg"].numpy() for name, held in state.items()},
        {name: held["exp_avg_sq"].numpy() for name, held in state.items()},
    )


def jaxtag_trained(params, grads, options, has_schedule):
    """The same of jaxtag, all steps in one program."""
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


def relative_distance(found, expected):
    found, expected = np.float64(found), np.float64(expected)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_thousand_steps_of_adamw_are_torchs(parity, name):
    params, grads = tensors(seed=list(SETTINGS).index(name))
    arguments = params, grads, SETTINGS[name], name == "schedule"
    found, expected = jaxtag_trained(*arguments), torch_trained(*arguments)
    worst = Worst(parity)
    for part, ours, theirs in zip(("", ", m", ", v"), found, expected, strict=True):
        for leaf, value in theirs.items():
            worst.see("8", relative_distance(ours[leaf], value), f"{name}, {leaf}{part}")
    worst.check()


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_the_first_steps_of_adamw_from_zero_are_torchs(parity, steps):
    params, grads = tensors(seed=9)
    params = {leaf: np.zeros_like(value) for leaf, value in params.items()}
    grads = {leaf: value[:steps] for leaf, value in grads.items()}
    worst = Worst(parity)
    arguments = params, grads, {"lr": 1e-3, "weight_decay": 0.0}, False
    found, expected = jaxtag_trained(*arguments)[0], torch_trained(*arguments)[0]
    for leaf, value in expected.items():
        worst.see("8", relative_distance(found[leaf], value), f"step {steps} from zero, {leaf}")
    worst.check()


# Schedules


def ulps(found, exact):
    """How far float32 values are from float64 ones, in steps of float32 there."""
    exact = np.asarray(exact, np.float64)
    return np.abs(np.float64(found) - exact) / np.spacing(np.abs(exact).astype(np.float32))


def torch_rates(config, total_steps, steps):
    """The rate in float64 at each of so many steps, as the user's loop gets it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.lr)
    scheduler = LambdaLR(optimizer, schedule_factor(config, total_steps))
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_every_schedule_is_torchs_at_every_step_and_past_the_end(parity, decay):
    worst = Worst(parity)
    for total_steps in (1, 2, 3, 7, 100, 1000):
        for warmup in (0.0, 0.05, 0.1, 0.37, 1.0):
            config = TrainConfig(lr=3e-4, warmup=warmup, decay=decay)
            steps = total_steps + 20
            rates = optim.schedule(config, total_steps)(jnp.arange(steps))
            apart = ulps(rates, torch_rates(config, total_steps, steps))
            case = f"{decay}, warm-up {warmup:g} of {total_steps}, step {apart.argmax()}"
            worst.see("9a", apart.max(), case, steps)
    worst.check()


# Clipping

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
NORMS = (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)
LIMITS = (2.0**-11, 0.75, 1.0)  # float32 holds them: rounding another is no part of clipping


def gradient_of(seed, size, norm):
    """Three leaves of so many numbers; the first is a power of two, so that a quotient is exact."""
    values = np.random.default_rng(seed).normal(size=size)
    values *= norm / np.linalg.norm(values)
    values[0] = 2.0 ** np.round(np.log2(norm / np.sqrt(size)))
    return np.split(values.astype(np.float32), [size // 2, size // 2 + size // 3])


def torch_coefficient(gradient, limit):
    leaves = [torch.nn.Parameter(torch.zeros(leaf.size)) for leaf in gradient]
    for leaf, value in zip(leaves, gradient, strict=True):
        leaf.grad = torch.tensor(value)
    torch.nn.utils.clip_grad_norm_(leaves, limit)
    return leaves[0].grad.numpy()[0] / gradient[0][0]


def test_the_clip_coefficient_is_no_further_from_float64_than_torchs(parity):
    worst, own, torchs, cases = Worst(parity), 0.0, 0.0, 0
    for limit in LIMITS:
        clip = optim.clip_by_global_norm(limit)
        update = jax.jit(clip.update)
        for size in SIZES:
            for seed, norm in enumerate(NORMS * (4 if size <= 10_000 else 1)):
                gradient = gradient_of(seed, size, norm)
                exact_norm = np.linalg.norm(np.concatenate(gradient).astype(np.float64))
                exact = min(1.0, limit / (exact_norm + 1e-6))
                clipped, _ = update(gradient, clip.init(gradient))
                apart = ulps(np.asarray(clipped[0])[0] / gradient[0][0], exact)
                worst.see("9b", apart, f"{size} numbers of norm {norm:g}, limit {limit:g}")
                own, cases = max(own, apart), cases + 1
                torchs = max(torchs, ulps(torch_coefficient(gradient, limit), exact))
    worst.see("9c", max(0.0, own - torchs), f"the worst of each: {own:.2f}, {torchs:.2f}", cases)
    worst.check()
