"""A scaler's state to the five numbers of ``GradScaler.state_dict`` and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtag.loss_scale.scaler import LossScaleConfig, LossScaleState, find, init, require


def to_torch(state: Any, config: LossScaleConfig) -> dict[str, Any]:
    """The five numbers that ``GradScaler.load_state_dict`` takes.

    ``ValueError`` where the scale does not move: a GradScaler's always does.
    """
    require(config.mode == "dynamic", "mode", "dynamic", config.mode)
    found = jax.device_get(find(state))
    return {
        "scale": float(found.scale),
        "growth_factor": config.growth_factor,
        "backoff_factor": config.backoff_factor,
        "growth_interval": 0 if config.growth_interval is None else config.growth_interval,
        "_growth_tracker": int(found.growth_tracker),
    }


def from_torch(saved: Mapping[str, Any]) -> tuple[LossScaleState, LossScaleConfig]:
    """A scaler's state and settings out of ``GradScaler.state_dict()``.

    ``ValueError`` where it is that of a disabled scaler (empty), or its scale is one from which
    PyTorch itself does not come back: 0 or below 2^-126, infinite.
    """
    names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
    missing = [name for name in names if name not in saved]
    if missing:
        raise ValueError(
            f"state_dict: expected the five numbers of an enabled scaler, no {missing}"
        )
    config = LossScaleConfig(
        init_scale=float(saved["scale"]),
        growth_factor=float(saved["growth_factor"]),
        backoff_factor=float(saved["backoff_factor"]),
        growth_interval=int(saved["growth_interval"]) or None,
        min_scale=0.0,
        max_scale=float(np.finfo(np.float32).max),
    )
    tracker = jnp.asarray(saved["_growth_tracker"], jnp.int32)
    return init(config)._replace(growth_tracker=tracker), config
