"""A train config in; one optax chain out: clip, AdamW with a decay mask, schedule."""

from __future__ import annotations

from typing import Any

import jax
import optax

from jaxtag.config import ConfigError, TrainConfig


def build(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Chain clipping by global norm and AdamW under a learning-rate schedule.

    Expects gradients already
    divided by the token count of the step.
    """
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(
        *clip,
        optax.adamw(schedule, weight_decay=config.weight_decay, mask=decay_mask),
    )


def schedule(config: TrainConfig, total_steps: int) -> optax.Schedule:
    """Linear warm-up from 0 to the peak, then a linear or cosine fall to 0 at ``total_steps``."""
    total_steps = max(1, total_steps)
    warmup = min(round(config.warmup * total_steps), total_steps - 1)
    match config.decay:
        case "linear":
            fall = optax.linear_schedule(config.lr, 0.0, total_steps - warmup)
        case "cosine":
            fall = optax.cosine_decay_schedule(config.lr, total_steps - warmup)
        case other:
            raise ConfigError(f"train.decay: expected linear or cosine, found {other!r}")
    return optax.join_schedules([optax.linear_schedule(0.0, config.lr, warmup), fall], [warmup])


def decay_mask(params: Any) -> Any:
    """Mark what weight decay pulls at: matrices; biases, norms and embeddings are spared.

    >>> decay_mask({"head": {"kernel": 1.0, "bias": 1.0}, "embed": {"words": 1.0}})
    {'embed': {'words': False}, 'head': {'bias': False, 'kernel': True}}
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) == "kernel", params
    )
