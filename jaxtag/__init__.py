"""Token classification in JAX: exact losses, static shapes, right metrics.

Modules are imported when first used, so that no command pays for what it does not need.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(f"module 'jaxtag' has no attribute {name!r}")
    try:
        return importlib.import_module(f"jaxtag.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"jaxtag.{name}":
            raise
        raise AttributeError(f"module 'jaxtag' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return sorted([*globals(), *(module.name for module in pkgutil.iter_modules(__path__))])
