"""What all models are made of: linear layers in the policy's dtype, norms, dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxtag.precision import Policy

BLOCK = 16  # positions that one matrix product takes together


@dataclass(frozen=True)
class Dropout:
    """Dropout whose masks are a function of a key and of the place in the model."""

    rate: float
    key: Key[Array, ""] | None

    def at(self, place: int) -> Dropout:
        """The dropout of one place, or of one layer, whose own places are numbered anew."""
        if self.key is None:
            return self
        return Dropout(self.rate, jax.random.fold_in(self.key, place))

    def __call__(self, values: Float[Array, ...]) -> Float[Array, ...]:
        """Zero a share of the values and scale up the rest; without a key, change nothing."""
        if self.key is None or self.rate == 0.0:
            return values
        keep = jax.random.bernoulli(self.key, 1.0 - self.rate, values.shape)
        return jnp.where(keep, values / (1.0 - self.rate), 0).astype(values.dtype)


def blockwise(layer: Callable[[Array], Array], values_BLK: Array, policy: Policy) -> Array:
    """Apply a layer to blocks of positions, so that in float32 a row's length changes no bit of it.

    A matrix product over all positions would be another program for each length, and XLA may add
    up its terms in another order. In 16 bits the gradient of a weight would be rounded block by
    block, and overflow later than the whole of it.
    """
    if policy.compute_dtype != jnp.float32:
        return layer(values_BLK)
    rows, length = values_BLK.shape[:2]
    blocks = -(-length // BLOCK)
    padding = [(0, 0)] * (values_BLK.ndim - 2)
    padded_BLK = jnp.pad(values_BLK, [(0, 0), (0, blocks * BLOCK - length), *padding])
    split = padded_BLK.reshape(rows, blocks, BLOCK, *values_BLK.shape[2:])
    outputs = jax.lax.map(layer, jnp.swapaxes(split, 0, 1))
    joined_BLK = jnp.swapaxes(outputs, 0, 1).reshape(rows, blocks * BLOCK, *outputs.shape[3:])
    return joined_BLK[:, :length]


def linear(
    inputs: int, outputs: int, policy: Policy, *, rngs: nnx.Rngs, **options: Any
) -> nnx.Linear:
    """A linear layer with float32 parameters that computes as the policy says."""
    return nnx.Linear(
        inputs,
        outputs,
        dtype=policy.compute_dtype,
        precision=policy.matmul_precision,
        rngs=rngs,
        **options,
    )


def norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """PyTorch's LayerNorm: its epsilon, and a variance that survives a large mean."""
    return nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
