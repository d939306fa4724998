"""Every tolerance that is no bound of a claim, each with the reason for its size."""

from __future__ import annotations

from claims import CLAIMS

# Percentages written with two decimals.
PERCENT_OF_TWO_DECIMALS = 0.005

FLOAT32_EPS = 2.0**-23

# Loss per token against torch, in eps * S.
CROSS_ENTROPY_LOSS_EPS = CLAIMS["2"].bound

# Relative, for a sum of positive float32 numbers, added in another order.
FEW_FLOAT32_ROUNDINGS = 8 * FLOAT32_EPS

# Logits of a token, of the order of 1, in rows of another length or in a batch of more rows:
# XLA orders the additions of a matrix product by its shape.
PADDING_LOGITS = {"bilstm": 1e-6, "transformer": 1e-5}
PACKING_LOGITS = {"bilstm": 1e-6, "transformer": 1e-5}

# Relative L2 distance of whole gradients or parameters, summed over other parts of the batch.
PARTITION_RELATIVE = CLAIMS["7b"].bound

# Relative difference of a loss computed in bfloat16, eight bits of precision, from float32's.
BFLOAT16_LOSS_RELATIVE = 0.02

# Two logits of a token nearer than this may change places by rounding.
CLOSE_LOGITS = 1e-5
