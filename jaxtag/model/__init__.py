"""A model config in; pure ``init`` and ``apply`` over a plain dict of parameters out.

``flax.nnx`` serves as a layer library only: a module is split once, and merged again inside
``apply``. Every model has three parts, an embedding, an encoder and a head, and none of them lets
a token see padding or another sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from jaxtag.batch import Batch
from jaxtag.config import ConfigError, ModelConfig
from jaxtag.model import layers
from jaxtag.model.attention import Transformer
from jaxtag.model.embedding import Embedding, Sizes
from jaxtag.model.layers import Dropout
from jaxtag.model.recurrent import BiLSTM
from jaxtag.precision import Policy

__all__ = ["Dropout", "Model", "Params", "Sizes", "build"]

Params = dict[str, Any]

FLOAT32 = Policy("float32")


@dataclass(frozen=True)
class Model:
    """The two pure functions of a tagger."""

    init: Callable[[Key[Array, ""]], Params]
    """key -> parameters, a nested dict of float32 arrays."""
    apply: Callable[..., Float[Array, "B L C"]]
    """(parameters, batch, dropout_key=None) -> float32 logits; without a key, no dropout."""
    policy: Policy = FLOAT32
    """What ``apply`` computes in."""


def build(
    config: ModelConfig,
    policy: Policy,
    sizes: Sizes,
) -> Model:
    """Make the tagger that ``config`` names.

    Row 0 of its embeddings is padding: it is zero, receives exactly no gradient and stays zero.

    >>> model = build(ModelConfig(width=8), Policy("float32"), Sizes(5, "none", 1, 3))
    >>> params = model.init(jax.random.key(0))
    >>> sorted(params)
    ['embed', 'encoder', 'head']
    """

    def create(key: Key[Array, ""]) -> Network:
        return Network(
            config,
            policy,
            sizes,
            rngs=nnx.Rngs(params=key),
        )

    def init(key: Key[Array, ""]) -> Params:
        return nnx.to_pure_dict(nnx.split(create(key))[1])

    graph, state = nnx.split(nnx.eval_shape(lambda: create(jax.random.key(0))))

    def apply(
        params: Params, batch: Batch, dropout_key: Key[Array, ""] | None = None
    ) -> Float[Array, "B L C"]:
        merged = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(merged, params)
        return nnx.merge(graph, merged)(batch, Dropout(config.dropout, dropout_key))

    return Model(init, apply, policy)


class Network(nnx.Module):
    """Embedding, encoder, head: a batch in, float32 logits of every class for every cell out."""

    def __init__(
        self,
        config: ModelConfig,
        policy: Policy,
        sizes: Sizes,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.policy = policy
        self.embed = Embedding(sizes, config.width, policy, rngs=rngs)
        match config.kind:
            case "bilstm":
                self.encoder: BiLSTM | Transformer = BiLSTM(config, policy, rngs=rngs)
            case "transformer":
                self.encoder = Transformer(config, policy, rngs=rngs)
            case other:
                raise ConfigError(f"model.kind: expected bilstm or transformer, found {other!r}")
        self.head = layers.linear(
            config.width,
            sizes.classes,
            policy,
            preferred_element_type=jnp.float32,  # logits are never rounded to 16 bits
            rngs=rngs,
        )

    def __call__(self, batch: Batch, dropout: Dropout) -> Float[Array, "B L C"]:
        x_BLD = dropout.at(0)(self.embed(batch))
        x_BLD = dropout.at(1)(self.encoder(x_BLD, batch, dropout.at(2)))
        return layers.blockwise(self.head, x_BLD, self.policy)
