"""The same streams through ``torch.amp.GradScaler``."""

from __future__ import annotations

import numpy as np
import scaler_cases
import torch
from torch.amp.grad_scaler import GradScaler

from torch_ref import loss_scale


def trajectory(case: scaler_cases.Case, events: np.ndarray) -> dict[str, np.ndarray]:
    """Scale, tracker and whether it was taken after each step of one stream."""
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = _scaler(case)
    found: dict[str, list] = {"scale": [], "tracker": [], "taken": []}
    for number, event in enumerate(events.tolist()):
        if number == len(events) // 2:
            saved, scaler = scaler.state_dict(), _scaler(case)
            scaler.load_state_dict(saved)
            scaler.scale(torch.zeros(()))
        weight.grad = torch.tensor(scaler_cases.GRADIENTS[event])
        scaler.step(optimizer)
        found["taken"].append(not loss_scale.overflowed(scaler, optimizer))
        scaler.update()
        found["scale"].append(scaler.get_scale())
        found["tracker"].append(scaler._get_growth_tracker())
    dtypes = {"scale": np.float32, "tracker": np.int32, "taken": np.bool_}
    return {name: np.array(values, dtypes[name]) for name, values in found.items()}


def _scaler(case: scaler_cases.Case) -> GradScaler:
    config = case.config
    scaler = GradScaler(
        "cpu",
        init_scale=config.init_scale,
        growth_factor=config.growth_factor,
        backoff_factor=config.backoff_factor,
        growth_interval=case.interval,
    )
    scaler.scale(torch.zeros(()))  # makes its state, which is lazy
    return scaler


def trajectories(case: scaler_cases.Case, events: np.ndarray) -> dict[str, np.ndarray]:
    """The same of many streams, one after the other."""
    each = [trajectory(case, stream) for stream in events]
    return {name: np.stack([one[name] for one in each]) for name in each[0]}
