"""Ids of words and of what stands inside them to vectors."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxtag.batch import Batch
from jaxtag.encode import PARTS
from jaxtag.model import layers
from jaxtag.precision import Policy

PART_WIDTH = 32  # width of the embedding of an affix or a character


@dataclass(frozen=True)
class Sizes:
    """What a model must know of the encoder: rows of its tables, and its number of classes."""

    words: int
    """Rows of the word embedding."""
    kind: str
    """What is seen inside a word: affixes, characters or none."""
    parts: int
    """Rows of the embedding of affixes or characters."""
    classes: int


class Embedding(nnx.Module):
    """The sum of a word's embedding and of what a small layer reads from inside it."""

    def __init__(self, sizes: Sizes, width: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.policy = policy
        self.words = _table(rngs, sizes.words, width)
        match sizes.kind:
            case "affixes":
                self.inside: Affixes | Characters | None = Affixes(
                    sizes.parts, width, policy, rngs=rngs
                )
            case "characters":
                self.inside = Characters(sizes.parts, width, policy, rngs=rngs)
            case _:
                self.inside = None

    def __call__(self, batch: Batch) -> Float[Array, "B L D"]:
        x_BLD = _lookup(self.words[...], batch.ids_BL)
        if self.inside is not None:
            x_BLD = x_BLD + layers.blockwise(self.inside, batch.parts_BLW, self.policy)
        return x_BLD


class Affixes(nnx.Module):
    """Embeddings of a token's W affixes and shapes, side by side, through one linear layer."""

    def __init__(self, rows: int, width: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.project = layers.linear(PARTS["affixes"] * PART_WIDTH, width, policy, rngs=rngs)

    def __call__(self, parts_BLW: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        parts_BLWK = _lookup(self.table[...], parts_BLW)
        return self.project(parts_BLWK.reshape(*parts_BLW.shape[:2], -1)).astype(jnp.float32)


class Characters(nnx.Module):
    """A convolution over each three characters of a token, and the maximum over their places."""

    def __init__(self, rows: int, width: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.convolve = layers.linear(3 * PART_WIDTH, width, policy, rngs=rngs)

    def __call__(self, parts_BLW: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        inside_BLWK = _lookup(self.table[...], parts_BLW)
        padded_BLWK = jnp.pad(inside_BLWK, ((0, 0), (0, 0), (1, 1), (0, 0)))
        triples_BLWK = jnp.concatenate(
            [padded_BLWK[:, :, i : i + parts_BLW.shape[-1]] for i in range(3)], axis=-1
        )
        found_BLWD = jax.nn.relu(self.convolve(triples_BLWK).astype(jnp.float32))
        return jnp.max(jnp.where((parts_BLW > 0)[..., None], found_BLWD, 0.0), axis=2)


def _table(rngs: nnx.Rngs, rows: int, width: int) -> nnx.Param[Array]:
    table_VD = 0.1 * jax.random.normal(rngs.params(), (rows, width))
    return nnx.Param(table_VD.at[0].set(0.0))


def _lookup(table_VD: Float[Array, "V D"], ids: Int[Array, ...]) -> Float[Array, "... D"]:
    # The mask, not the zero row, is what keeps row 0 from receiving a gradient.
    return jnp.where(ids[..., None] != 0, table_VD[ids], 0.0)
