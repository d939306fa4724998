"""Flags and TOML in, frozen dataclasses out, JSON beside every run.

Nothing here imports jax or numpy, so that ``--help`` and a typing mistake are answered at once.
"""

from __future__ import annotations

from jaxtag.config.reading import from_dict, load_toml, parse, run_command, to_dict
from jaxtag.config.settings import (
    MAX_FLOAT32,
    Config,
    ConfigError,
    DataConfig,
    Decay,
    Delimiter,
    EncodeConfig,
    Format,
    InputError,
    LossScaling,
    ModelConfig,
    ModelKind,
    Parts,
    PolicyName,
    PrecisionConfig,
    ReadConfig,
    Scheme,
    TrainConfig,
)

__all__ = [
    "MAX_FLOAT32",
    "Config",
    "ConfigError",
    "DataConfig",
    "Decay",
    "Delimiter",
    "EncodeConfig",
    "Format",
    "InputError",
    "LossScaling",
    "ModelConfig",
    "ModelKind",
    "Parts",
    "PolicyName",
    "PrecisionConfig",
    "ReadConfig",
    "Scheme",
    "TrainConfig",
    "from_dict",
    "load_toml",
    "parse",
    "run_command",
    "to_dict",
]
