"""A model config in; pure ``init`` and ``apply`` over a plain dict of parameters out.

``flax.nnx`` serves as a layer library only: a module is split once, and merged again inside
``apply``. Every model has three parts, an embedding, an encoder and a head, and none of them lets
a token see padding or another sentence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from jaxtag.batch import Batch
from jaxtag.config import ConfigError, ModelConfig
from jaxtag.encode import PARTS
from jaxtag.precision import Policy

Params = dict[str, Any]

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


@dataclass(frozen=True)
class Model:
    """The two pure functions of a tagger."""

    init: Callable[[Key[Array, ""]], Params]
    """key -> parameters, a nested dict of float32 arrays."""
    apply: Callable[..., Float[Array, "B L C"]]
    """(parameters, batch, dropout_key=None) -> float32 logits; without a key, no dropout."""


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
    if config.width % 2 or (config.kind == "transformer" and config.width % config.heads):
        raise ConfigError(
            f"model.width: expected an even multiple of model.heads ({config.heads}), "
            f"found {config.width}"
        )

    def create(key: Key[Array, ""]) -> Tagger:
        return Tagger(
            config,
            policy.compute_dtype,
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

    return Model(init, apply)


class Dropout:
    """Dropout whose masks are a function of one key and of the order of the calls."""

    def __init__(self, rate: float, key: Key[Array, ""] | None) -> None:
        self.rate = rate
        self.key = key
        self.calls = 0

    def __call__(self, values: Float[Array, ...]) -> Float[Array, ...]:
        """Zero a share of the values and scale up the rest; without a key, change nothing."""
        if self.key is None or self.rate == 0.0:
            return values
        self.calls += 1
        keep = jax.random.bernoulli(
            jax.random.fold_in(self.key, self.calls), 1.0 - self.rate, values.shape
        )
        return jnp.where(keep, values / (1.0 - self.rate), 0).astype(values.dtype)


class Tagger(nnx.Module):
    """Embedding, encoder, head: a batch in, float32 logits of every class for every cell out."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: DTypeLike,
        sizes: Sizes,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        self.embed = Embedding(sizes, config.width, dtype, rngs=rngs)
        match config.kind:
            case "bilstm":
                self.encoder: BiLSTM | Transformer = BiLSTM(config, dtype, rngs=rngs)
            case "transformer":
                self.encoder = Transformer(config, dtype, rngs=rngs)
            case other:
                raise ConfigError(f"model.kind: expected bilstm or transformer, found {other!r}")
        self.head = nnx.Linear(config.width, sizes.classes, dtype=dtype, rngs=rngs)

    def __call__(self, batch: Batch, dropout: Dropout) -> Float[Array, "B L C"]:
        x_BLD = dropout(self.embed(batch))
        x_BLD = dropout(self.encoder(x_BLD, batch, dropout))
        return self.head(x_BLD).astype(jnp.float32)


class Embedding(nnx.Module):
    """The sum of a word's embedding and of what a small layer reads from inside it."""

    def __init__(self, sizes: Sizes, width: int, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.words = _table(rngs, sizes.words, width)
        match sizes.kind:
            case "affixes":
                self.inside: Affixes | Characters | None = Affixes(
                    sizes.parts, width, dtype, rngs=rngs
                )
            case "characters":
                self.inside = Characters(sizes.parts, width, dtype, rngs=rngs)
            case _:
                self.inside = None

    def __call__(self, batch: Batch) -> Float[Array, "B L D"]:
        x_BLD = _lookup(self.words[...], batch.ids_BL)
        if self.inside is not None:
            x_BLD = x_BLD + self.inside(batch.parts_BLW)
        return x_BLD


class Affixes(nnx.Module):
    """Embeddings of a token's W affixes and shapes, side by side, through one linear layer."""

    def __init__(self, rows: int, width: int, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.project = nnx.Linear(PARTS["affixes"] * PART_WIDTH, width, dtype=dtype, rngs=rngs)

    def __call__(self, parts_BLW: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        parts_BLWK = _lookup(self.table[...], parts_BLW)
        return self.project(parts_BLWK.reshape(*parts_BLW.shape[:2], -1)).astype(jnp.float32)


class Characters(nnx.Module):
    """A convolution over each three characters of a token, and the maximum over their places."""

    def __init__(self, rows: int, width: int, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.convolve = nnx.Linear(3 * PART_WIDTH, width, dtype=dtype, rngs=rngs)

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


class BiLSTM(nnx.Module):
    """Layers of two LSTMs, one in each direction, whose outputs stand side by side."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            [
                nnx.List([LSTM(config.width, config.width // 2, dtype, rngs=rngs) for _ in "><"])
                for _ in range(config.layers)
            ]
        )

    def __call__(
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: Dropout
    ) -> Float[Array, "B L D"]:
        for depth, (forward, backward) in enumerate(self.layers):
            if depth:
                x_BLD = dropout(x_BLD)
            x_BLD = jnp.concatenate(
                [
                    forward(x_BLD, batch.segments_BL, reverse=False),
                    backward(x_BLD, batch.segments_BL, reverse=True),
                ],
                axis=-1,
            )
        return x_BLD


class LSTM(nnx.Module):
    """One direction of Hochreiter and Schmidhuber (1997) with forget gates, order i, f, g, o."""

    def __init__(self, width: int, hidden: int, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.hidden = hidden
        self.inputs = nnx.Linear(
            width, 4 * hidden, dtype=dtype, bias_init=_open_forget_gate, rngs=rngs
        )
        self.recurrent = nnx.Linear(
            hidden,
            4 * hidden,
            use_bias=False,
            dtype=dtype,
            kernel_init=nnx.initializers.orthogonal(),
            rngs=rngs,
        )

    def __call__(
        self, x_BLD: Float[Array, "B L D"], segments_BL: Int[Array, "B L"], *, reverse: bool
    ) -> Float[Array, "B L K"]:
        # The state starts anew wherever the segment changes on the way: after padding, too.
        edge_B1 = jnp.full_like(segments_BL[:, :1], -1)
        if reverse:
            came_from_BL = jnp.concatenate([segments_BL[:, 1:], edge_B1], axis=1)
        else:
            came_from_BL = jnp.concatenate([edge_B1, segments_BL[:, :-1]], axis=1)
        goes_on_BL = came_from_BL == segments_BL
        gates_BLK = self.inputs(x_BLD).astype(jnp.float32)

        def cell(state, inputs):  # type: ignore[no-untyped-def]
            h_BK, c_BK = state
            gates_BK, goes_on_B = inputs
            h_BK, c_BK = (jnp.where(goes_on_B[:, None], s_BK, 0.0) for s_BK in (h_BK, c_BK))
            gates_BK = gates_BK + self.recurrent(h_BK).astype(jnp.float32)
            i_BK, f_BK, g_BK, o_BK = jnp.split(gates_BK, 4, axis=-1)
            c_BK = jax.nn.sigmoid(f_BK) * c_BK + jax.nn.sigmoid(i_BK) * jnp.tanh(g_BK)
            h_BK = jax.nn.sigmoid(o_BK) * jnp.tanh(c_BK)
            return (h_BK, c_BK), h_BK

        zeros_BK = jnp.zeros((x_BLD.shape[0], self.hidden), jnp.float32)
        _, h_LBK = jax.lax.scan(
            cell,
            (zeros_BK, zeros_BK),
            (jnp.swapaxes(gates_BLK, 0, 1), jnp.swapaxes(goes_on_BL, 0, 1)),
            reverse=reverse,
        )
        return jnp.swapaxes(h_LBK, 0, 1)


def _open_forget_gate(
    key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike = jnp.float32
) -> Float[Array, " gates"]:
    """Biases of 1 for the forget gate, which let gradients through from the first step on."""
    hidden = shape[0] // 4
    return jnp.zeros(shape, dtype).at[hidden : 2 * hidden].set(1.0)


class Transformer(nnx.Module):
    """Pre-norm layers of self-attention and feed-forward (Vaswani et al. 2017)."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([Layer(config, dtype, rngs=rngs) for _ in range(config.layers)])
        self.norm = _norm(config.width, rngs)

    def __call__(
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: Dropout
    ) -> Float[Array, "B L D"]:
        x_BLD = x_BLD + _sinusoids(batch.positions_BL, x_BLD.shape[-1])
        segments_BL = batch.segments_BL
        see_BLL = (segments_BL[:, :, None] == segments_BL[:, None, :]) & (
            segments_BL[:, None, :] > 0
        )
        for layer in self.layers:
            x_BLD = layer(x_BLD, see_BLL, dropout)
        return self.norm(x_BLD)


class Layer(nnx.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, config: ModelConfig, dtype: DTypeLike, *, rngs: nnx.Rngs) -> None:
        width = config.width
        linear = functools.partial(nnx.Linear, dtype=dtype, rngs=rngs)
        self.heads = config.heads
        self.norm_attention = _norm(width, rngs)
        self.query = linear(width, width)
        # No key bias: softmax cancels it, and Adam would turn the rounding noise into steps.
        self.key = linear(width, width, use_bias=False)
        self.value = linear(width, width)
        self.output = linear(width, width)
        self.norm_feed_forward = _norm(width, rngs)
        self.expand = linear(width, config.feed_forward)
        self.contract = linear(config.feed_forward, width)

    def __call__(
        self, x_BLD: Float[Array, "B L D"], see_BLL: Bool[Array, "B L L"], dropout: Dropout
    ) -> Float[Array, "B L D"]:
        normed_BLD = self.norm_attention(x_BLD)
        query_BLHK, key_BLHK, value_BLHK = (
            part(normed_BLD).reshape(*x_BLD.shape[:2], self.heads, -1)
            for part in (self.query, self.key, self.value)
        )
        scores_BHLL = jnp.einsum("blhk,bmhk->bhlm", query_BLHK, key_BLHK).astype(jnp.float32)
        scores_BHLL = scores_BHLL / math.sqrt(query_BLHK.shape[-1])
        # A cell that sees nothing gets finite nonsense, which no token and no loss ever reads.
        scores_BHLL = jnp.where(see_BLL[:, None], scores_BHLL, -1e30)
        weights_BHLL = jax.nn.softmax(scores_BHLL, axis=-1).astype(value_BLHK.dtype)
        mixed_BLHK = jnp.einsum("bhlm,bmhk->blhk", weights_BHLL, value_BLHK)
        x_BLD = x_BLD + dropout(self.output(mixed_BLHK.reshape(x_BLD.shape)).astype(jnp.float32))
        hidden_BLF = jax.nn.gelu(self.expand(self.norm_feed_forward(x_BLD)), approximate=False)
        return x_BLD + dropout(self.contract(hidden_BLF).astype(jnp.float32))


def _norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # PyTorch's epsilon, and the variance that does not lose precision to a large mean.
    return nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)


def _sinusoids(positions_BL: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """Sine and cosine of the position at width/2 frequencies from 1 down to 1/10,000."""
    rate = jnp.exp(jnp.arange(width // 2) * (-math.log(10_000.0) / max(1, width // 2 - 1)))
    angle_BLD = positions_BL[..., None].astype(jnp.float32) * rate
    return jnp.concatenate([jnp.sin(angle_BLD), jnp.cos(angle_BLD)], axis=-1)
