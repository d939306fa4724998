"""How far numbers are from those expected: relative L2 norms, and steps between floats."""

from __future__ import annotations

import jax
import numpy as np


def relative_distance(found, expected):
    """L2 norm of the difference over that of what is expected, over all leaves of a tree."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    gap = size = 0.0
    for one, other in pairs:
        one, other = np.float64(one), np.float64(other)
        gap += np.sum((one - other) ** 2)
        size += np.sum(other**2)
    return np.sqrt(gap / size)


def ulps(found, expected):
    """Distance from what is expected in steps of float32 there."""
    expected = np.asarray(expected, np.float64)
    return np.abs(np.float64(found) - expected) / np.spacing(np.abs(expected).astype(np.float32))
