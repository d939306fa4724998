"""A policy's name in; which dtype parameters, compute and losses have out."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxtag.config import ConfigError


@dataclass(frozen=True)
class Policy:
    """Where numbers are rounded: matrix products in ``compute_dtype``, all else in float32.

    Parameters, normalisation, softmax, losses and sums are float32 under every policy.

    >>> Policy("bfloat16").compute_dtype.__name__
    'bfloat16'
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in ("float32", "bfloat16", "float16"):
            raise ConfigError(
                f"precision.policy: expected float32, bfloat16 or float16, found {self.name!r}"
            )

    @property
    def compute_dtype(self) -> DTypeLike:
        """Dtype of the matrix products and of the activations between them."""
        match self.name:
            case "float32":
                return jnp.float32
            case "bfloat16":
                return jnp.bfloat16
            case _:
                return jnp.float16

    @property
    def matmul_precision(self) -> jax.lax.Precision:
        """What JAX is told of matrix products, or float32 ones would lose digits on GPU and TPU."""
        match self.name:
            case "float32":
                return jax.lax.Precision.HIGHEST
            case _:
                return jax.lax.Precision.DEFAULT

    @property
    def compiler_options(self) -> dict[str, bool] | None:
        """What ``jax.jit`` is to be given.

        On GPU, XLA by default leaves out a float16 rounding that is followed by a cast to
        float32, as every gradient of a float32 parameter has: it would then neither overflow at
        65,504 nor underflow, and the loss scale would follow other gradients than PyTorch's.
        """
        # A bool: XLA does not take the string "false".
        return {"xla_allow_excess_precision": False} if self.name == "float16" else None

    def warning(self, platform: str) -> str | None:
        """What a user should know of this policy on ``jax.default_backend()``.

        >>> Policy("float16").warning("tpu")
        'float16 on TPU: its matrix units are made for bfloat16, which needs no loss scale
        either; use --precision.policy bfloat16'
        >>> Policy("float16").warning("gpu") is Policy("bfloat16").warning("tpu") is None
        True
        """
        if self.name == "float16" and platform == "tpu":
            return (
                "float16 on TPU: its matrix units are made for bfloat16, which needs no loss scale "
                "either; use --precision.policy bfloat16"
            )
        return None
