"""Self-attention that sees its own sentence alone."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxtag.batch import Batch
from jaxtag.config import ModelConfig
from jaxtag.model import layers
from jaxtag.precision import Policy


class Transformer(nnx.Module):
    """Pre-norm layers of self-attention and feed-forward (Vaswani et al. 2017)."""

    def __init__(self, config: ModelConfig, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([Layer(config, policy, rngs=rngs) for _ in range(config.layers)])
        self.norm = layers.norm(config.width, rngs)

    def __call__(
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: layers.Dropout
    ) -> Float[Array, "B L D"]:
        x_BLD = x_BLD + _sinusoids(batch.positions_BL, x_BLD.shape[-1])
        segments_BL = batch.segments_BL
        see_BLL = (segments_BL[:, :, None] == segments_BL[:, None, :]) & (
            segments_BL[:, None, :] > 0
        )
        for depth, layer in enumerate(self.layers):
            x_BLD = layer(x_BLD, see_BLL, dropout.at(depth))
        return self.norm(x_BLD)


class Layer(nnx.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, config: ModelConfig, policy: Policy, *, rngs: nnx.Rngs) -> None:
        width = config.width
        linear = functools.partial(layers.linear, policy=policy, rngs=rngs)
        self.heads = config.heads
        self.precision = policy.matmul_precision
        self.norm_attention = layers.norm(width, rngs)
        self.query = linear(width, width)
        # No key bias: softmax cancels it, and Adam would turn the rounding noise into steps.
        self.key = linear(width, width, use_bias=False)
        self.value = linear(width, width)
        self.output = linear(width, width)
        self.norm_feed_forward = layers.norm(width, rngs)
        self.expand = linear(width, config.feed_forward)
        self.contract = linear(config.feed_forward, width)

    def __call__(
        self, x_BLD: Float[Array, "B L D"], see_BLL: Bool[Array, "B L L"], dropout: layers.Dropout
    ) -> Float[Array, "B L D"]:
        normed_BLD = self.norm_attention(x_BLD)
        query_BLHK, key_BLHK, value_BLHK = (
            part(normed_BLD).reshape(*x_BLD.shape[:2], self.heads, -1)
            for part in (self.query, self.key, self.value)
        )
        scores_BHLL = jnp.einsum(
            "blhk,bmhk->bhlm",
            query_BLHK,
            key_BLHK,
            precision=self.precision,
            preferred_element_type=jnp.float32,
        )
        scores_BHLL = scores_BHLL / math.sqrt(query_BLHK.shape[-1])
        # A cell that sees nothing gets finite nonsense, which no token and no loss ever reads.
        scores_BHLL = jnp.where(see_BLL[:, None], scores_BHLL, -1e30)
        weights_BHLL = jax.nn.softmax(scores_BHLL, axis=-1).astype(value_BLHK.dtype)
        mixed_BLHK = jnp.einsum(
            "bhlm,bmhk->blhk", weights_BHLL, value_BLHK, precision=self.precision
        )
        mixed_BLD = self.output(mixed_BLHK.reshape(x_BLD.shape))
        x_BLD = x_BLD + dropout.at(0)(mixed_BLD.astype(jnp.float32))
        hidden_BLF = jax.nn.gelu(self.expand(self.norm_feed_forward(x_BLD)), approximate=False)
        return x_BLD + dropout.at(1)(self.contract(hidden_BLF).astype(jnp.float32))


def _sinusoids(positions_BL: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """Sine and cosine of the position at width/2 frequencies from 1 down to 1/10,000."""
    rate = jnp.exp(jnp.arange(width // 2) * (-math.log(10_000.0) / max(1, width // 2 - 1)))
    angle_BLD = positions_BL[..., None].astype(jnp.float32) * rate
    return jnp.concatenate([jnp.sin(angle_BLD), jnp.cos(angle_BLD)], axis=-1)
