"""torch.optim.AdamW on the same stream of gradients."""

from __future__ import annotations

import torch
from adamw_cases import SCHEDULE, STEPS
from torch.optim.lr_scheduler import LambdaLR

from torch_ref.optim import schedule_factor


def trained(params, grads, options, has_schedule):
    """Parameters and both moments after the last of these gradients, as numpy."""
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
