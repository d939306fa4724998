"""What "jaxtag equals PyTorch" means, claim by claim, each with its one bound.

eps is 2^-23. A loss is compared in eps · S, its natural scale of error,

    S = w · max(1, |x_max - x_label|, ln C, smoothing · mean over c of (x_max - x_c))

with w the largest class weight, or 1. Steps between floats (ulp) are of no use there: near 0 they
grow without limit for every library.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """One line of the proof: a test fails where the measured value exceeds the bound."""

    key: str
    text: str
    bound: float
    unit: str


_CLAIMS = (
    Claim("1", "counts, for every pair of classes, equal torch's", 0, "differences"),
    Claim("2", "loss per token against torch, float32", 4, "eps·S"),
    Claim("3", "gradient against torch (C 1,000, smoothed: its float64)", 8, "eps·w an element"),
    Claim("4a", "loss per token against float64", 4, "eps·S"),
    Claim("4b", "its error beyond 1.5 × torch's own", 1, "eps·S"),
    Claim("5", "loss(x + k) = loss(x) where x + k is exact", 0, "bits that differ"),
    Claim("6a", "loss in any bucket, program (eager: unsmoothed), C ≤ 32", 0, "bits that differ"),
    Claim("6b", "gradient likewise", 1e-7, "absolute"),
    Claim("7a", "loss of any split into micro-batches and devices", 4, "ulp"),
    Claim("7b", "gradient of any such split", 1e-6, "relative L2"),
    Claim("8", "AdamW, 1,000 steps on the same gradients", 5e-6, "relative L2"),
    Claim("9a", "every schedule at every step and past the end", 2, "ulp"),
    Claim("9b", "clip coefficient against float64", 2, "ulp"),
    Claim(
        "9c",
        "the worst clip coefficient no further from float64 than torch's",
        0,
        "ulp beyond torch's",
    ),
    Claim("10a", "logits of both models, weights carried over", 1e-5, "absolute"),
    Claim("10b", "their gradients, leaf by leaf", 1e-5, "relative L2"),
    Claim("11a", "loss at every step of a float32 training", 5e-6, "relative"),
    Claim("11b", "correct counts, ties within 1e-5 apart", 0, "differences"),
    Claim("11c", "distance to torch float64, median over seeds", 2, "× torch float32's"),
    Claim("12", "weights and optimizer state there and back", 0, "bytes that differ"),
    Claim("13", "bad labels: raised where torch raises; in jit NaN, and counted", 0, "differences"),
    Claim("14", "all labels ignored: loss and gradient are 0", 0, "differences"),
    Claim("15", "entity scores against seqeval, where it is right", 0, "differences"),
    Claim("16", "scale, tracker, skips of GradScaler, saved and restored", 0, "steps that differ"),
    Claim("17a", "scale at each step of a float16 training", 0, "steps that differ"),
    Claim("17b", "float16 losses, apart on average", 1.5, "× torch's own from float32"),
    Claim("17c", "bfloat16 losses, apart on average", 1.5, "× torch's own from float32"),
)
CLAIMS = {claim.key: claim for claim in _CLAIMS}
