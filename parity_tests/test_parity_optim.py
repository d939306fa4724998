"""AdamW, both schedules and clipping: a thousand steps, every step, every size of gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch_adamw
from adamw_cases import SETTINGS, compare, tensors, trained
from distances import ulps
from loss_cases import Worst
from torch.optim.lr_scheduler import LambdaLR

from jaxtag import optim
from jaxtag.config import TrainConfig
from torch_ref.optim import schedule_factor

pytestmark = pytest.mark.parity

# AdamW


@pytest.mark.parametrize("name", SETTINGS)
def test_a_thousand_steps_of_adamw_are_torchs(parity, name):
    arguments = *tensors(seed=10 + list(SETTINGS).index(name)), SETTINGS[name], name == "schedule"
    worst = Worst(parity)
    compare(worst, name, trained(*arguments), torch_adamw.trained(*arguments))
    worst.check()


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_the_first_steps_of_adamw_from_zero_are_torchs(parity, steps):
    params, grads = tensors(seed=9)
    params = {leaf: np.zeros_like(value) for leaf, value in params.items()}
    grads = {leaf: value[:steps] for leaf, value in grads.items()}
    arguments = params, grads, {"lr": 1e-3, "weight_decay": 0.0}, False
    worst, case = Worst(parity), f"step {steps} from zero"
    compare(worst, case, trained(*arguments)[:1], torch_adamw.trained(*arguments)[:1])
    worst.check()


# Schedules


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
