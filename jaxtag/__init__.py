"""Token classification in JAX: exact losses, static shapes, right metrics.

Modules are imported when first used, so that no command pays for what it does not need.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__version__ = "0.1.0"

_MODULES = frozenset(
    {
        "batch",
        "checkpoint",
        "config",
        "corpus",
        "demo",
        "device",
        "encode",
        "labels",
        "losses",
        "metrics",
        "model",
        "optim",
        "plan",
        "precision",
        "step",
        "tagger",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"jaxtag.{name}")
    raise AttributeError(f"module 'jaxtag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
