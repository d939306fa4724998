"""A policy in; autocast as PyTorch users write it, or jaxtag's casts written out.

Autocast on the CPU also runs softmax, LayerNorm and GELU in 16 bits, and leaves the LSTM's output
in float32. With ``casts="explicit"`` the layers round where jaxtag's do: matrix products in the
policy's dtype, softmax, norms, losses and sums in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Policy:
    """What the model computes in; parameters are float32 under every policy."""

    name: str = "float32"
    casts: Literal["autocast", "explicit"] = "autocast"

    @property
    def dtype(self) -> torch.dtype:
        """What the layers cast to themselves; under autocast, nothing."""
        return DTYPES[self.name] if self.casts == "explicit" else torch.float32

    def autocast(self) -> AbstractContextManager[None]:
        """The context of the forward pass; the backward pass runs as the forward pass did."""
        enabled = self.casts == "autocast" and self.name != "float32"
        return torch.autocast("cpu", dtype=DTYPES[self.name], enabled=enabled)


class Linear(nn.Linear):
    """``nn.Linear`` on float32 parameters, its product and its bias rounded to ``compute``."""

    def __init__(
        self, inputs: int, outputs: int, compute: torch.dtype, *, bias: bool = True
    ) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        if self.compute == torch.float32:
            return super().forward(x)
        y = x.to(self.compute) @ self.weight.to(self.compute).T
        return y if self.bias is None else y + self.bias.to(self.compute)


def product_in_float32(a: Tensor, b: Tensor, compute: torch.dtype) -> Tensor:
    """Factors rounded to ``compute``, their product kept in float32, as for scores and logits."""
    return a.to(compute).float() @ b.to(compute).float()
