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

FLOAT32 = Policy("float32")
BLOCK = 16  # positions that one matrix product takes together
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
        self.head = _linear(
            config.width,
            sizes.classes,
            policy,
            preferred_element_type=jnp.float32,  # logits are never rounded to 16 bits
            rngs=rngs,
        )

    def __call__(self, batch: Batch, dropout: Dropout) -> Float[Array, "B L C"]:
        x_BLD = dropout.at(0)(self.embed(batch))
        x_BLD = dropout.at(1)(self.encoder(x_BLD, batch, dropout.at(2)))
        return _blockwise(self.head, x_BLD, self.policy)


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
            x_BLD = x_BLD + _blockwise(self.inside, batch.parts_BLW, self.policy)
        return x_BLD


class Affixes(nnx.Module):
    """Embeddings of a token's W affixes and shapes, side by side, through one linear layer."""

    def __init__(self, rows: int, width: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.project = _linear(PARTS["affixes"] * PART_WIDTH, width, policy, rngs=rngs)

    def __call__(self, parts_BLW: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        parts_BLWK = _lookup(self.table[...], parts_BLW)
        return self.project(parts_BLWK.reshape(*parts_BLW.shape[:2], -1)).astype(jnp.float32)


class Characters(nnx.Module):
    """A convolution over each three characters of a token, and the maximum over their places."""

    def __init__(self, rows: int, width: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.table = _table(rngs, rows, PART_WIDTH)
        self.convolve = _linear(3 * PART_WIDTH, width, policy, rngs=rngs)

    def __call__(self, parts_BLW: Int[Array, "B L W"]) -> Float[Array, "B L D"]:
        inside_BLWK = _lookup(self.table[...], parts_BLW)
        padded_BLWK = jnp.pad(inside_BLWK, ((0, 0), (0, 0), (1, 1), (0, 0)))
        triples_BLWK = jnp.concatenate(
            [padded_BLWK[:, :, i : i + parts_BLW.shape[-1]] for i in range(3)], axis=-1
        )
        found_BLWD = jax.nn.relu(self.convolve(triples_BLWK).astype(jnp.float32))
        return jnp.max(jnp.where((parts_BLW > 0)[..., None], found_BLWD, 0.0), axis=2)


def _blockwise(layer: Callable[[Array], Array], values_BLK: Array, policy: Policy) -> Array:
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


def _table(rngs: nnx.Rngs, rows: int, width: int) -> nnx.Param[Array]:
    table_VD = 0.1 * jax.random.normal(rngs.params(), (rows, width))
    return nnx.Param(table_VD.at[0].set(0.0))


def _lookup(table_VD: Float[Array, "V D"], ids: Int[Array, ...]) -> Float[Array, "... D"]:
    # The mask, not the zero row, is what keeps row 0 from receiving a gradient.
    return jnp.where(ids[..., None] != 0, table_VD[ids], 0.0)


class BiLSTM(nnx.Module):
    """Layers of two LSTMs, one in each direction, whose outputs stand side by side."""

    def __init__(self, config: ModelConfig, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List(
            [
                nnx.List([LSTM(config.width, config.width // 2, policy, rngs=rngs) for _ in "><"])
                for _ in range(config.layers)
            ]
        )

    def __call__(
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: Dropout
    ) -> Float[Array, "B L D"]:
        for depth, (forward, backward) in enumerate(self.layers):
            if depth:
                x_BLD = dropout.at(depth)(x_BLD)
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

    def __init__(self, width: int, hidden: int, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.hidden, self.policy = hidden, policy
        self.inputs = _linear(width, 4 * hidden, policy, bias_init=_open_forget_gate, rngs=rngs)
        self.recurrent = _linear(
            hidden,
            4 * hidden,
            policy,
            use_bias=False,
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
        gates_BLK = _blockwise(self.inputs, x_BLD, self.policy).astype(jnp.float32)

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

    def __init__(self, config: ModelConfig, policy: Policy, *, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([Layer(config, policy, rngs=rngs) for _ in range(config.layers)])
        self.norm = _norm(config.width, rngs)

    def __call__(
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: Dropout
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
        linear = functools.partial(_linear, policy=policy, rngs=rngs)
        self.heads = config.heads
        self.precision = policy.matmul_precision
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


def _linear(
    inputs: int, outputs: int, policy: Policy, *, rngs: nnx.Rngs, **options: Any
) -> nnx.Linear:
    return nnx.Linear(
        inputs,
        outputs,
        dtype=policy.compute_dtype,
        precision=policy.matmul_precision,
        rngs=rngs,
        **options,
    )


def _norm(width: int, rngs: nnx.Rngs) -> nnx.LayerNorm:
    # PyTorch's epsilon, and the variance that does not lose precision to a large mean.
    return nnx.LayerNorm(width, epsilon=1e-5, use_fast_variance=False, rngs=rngs)


def _sinusoids(positions_BL: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """Sine and cosine of the position at width/2 frequencies from 1 down to 1/10,000."""
    rate = jnp.exp(jnp.arange(width // 2) * (-math.log(10_000.0) / max(1, width // 2 - 1)))
    angle_BLD = positions_BL[..., None].astype(jnp.float32) * rate
    return jnp.concatenate([jnp.sin(angle_BLD), jnp.cos(angle_BLD)], axis=-1)
