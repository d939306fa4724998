"""LSTMs in both directions, whose state starts anew at every sentence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from jaxtag.batch import Batch
from jaxtag.config import ModelConfig
from jaxtag.model import layers
from jaxtag.precision import Policy


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
        self, x_BLD: Float[Array, "B L D"], batch: Batch, dropout: layers.Dropout
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
        self.inputs = layers.linear(
            width, 4 * hidden, policy, bias_init=_open_forget_gate, rngs=rngs
        )
        self.recurrent = layers.linear(
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
        gates_BLK = layers.blockwise(self.inputs, x_BLD, self.policy).astype(jnp.float32)

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
