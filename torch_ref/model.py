"""The two taggers, layer by layer those of jaxtag."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from jaxtag.config import ModelConfig
from jaxtag.encode import PARTS
from torch_ref.batch import Batch
from torch_ref.precision import Linear, Policy, product_in_float32

PART_WIDTH = 32
FLOAT32 = Policy()


class Tagger(nn.Module):
    """A batch to logits (B, L, C): embedding, encoder, head."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        words: int,
        kind: str,
        parts: int,
        classes: int,
        policy: Policy = FLOAT32,
    ) -> None:
        super().__init__()
        self.policy = policy
        self.embed = Embedding(words, kind, parts, config.width, policy.dtype)
        if config.kind == "bilstm":
            self.encoder: nn.Module = BiLSTM(config, policy.dtype)
        else:
            self.encoder = Transformer(config, policy.dtype)
        self.head = nn.Linear(config.width, classes)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of every class for every cell; those of padding mean nothing."""
        with self.policy.autocast():
            x = self.dropout(self.embed(batch))
            x = self.dropout(self.encoder(x, batch))
            if self.policy.dtype == torch.float32:
                return self.head(x)
            # Logits are never rounded to 16 bits.
            logits = product_in_float32(x, self.head.weight.T, self.policy.dtype)
            return logits + self.head.bias.to(self.policy.dtype)


class Embedding(nn.Module):
    """A word's embedding plus what a small layer reads from inside the word."""

    def __init__(self, words: int, kind: str, parts: int, width: int, compute: torch.dtype) -> None:
        super().__init__()
        # padding_idx keeps row 0 at zero: it gets no gradient.
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.inside: nn.Module | None = None
        if kind == "affixes":
            self.inside = Affixes(parts, width, compute)
        elif kind == "characters":
            self.inside = Characters(parts, width, compute)

    def forward(self, batch: Batch) -> Tensor:
        x = self.words(batch.ids)
        return x if self.inside is None else x + self.inside(batch.parts)


class Affixes(nn.Module):
    """Embeddings of a token's affixes, side by side, through a linear layer."""

    def __init__(self, parts: int, width: int, compute: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(parts, PART_WIDTH, padding_idx=0)
        self.project = Linear(PARTS["affixes"] * PART_WIDTH, width, compute)

    def forward(self, parts: Tensor) -> Tensor:
        return self.project(self.table(parts).flatten(2)).float()


class Characters(nn.Module):
    """A convolution of width 3 over a token's characters, and the maximum over their places."""

    def __init__(self, parts: int, width: int, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.table = nn.Embedding(parts, PART_WIDTH, padding_idx=0)
        self.convolve = nn.Conv1d(PART_WIDTH, width, kernel_size=3, padding=1)

    def forward(self, parts: Tensor) -> Tensor:
        characters = self.table(parts).flatten(0, 1).transpose(1, 2)
        if self.compute == torch.float32:
            found = F.relu(self.convolve(characters))
        else:
            weight, bias = (p.to(self.compute) for p in self.convolve.parameters())
            found = F.conv1d(characters.to(self.compute), weight, bias, padding=1)
            found = F.relu(found.float())
        # The convolution's bias gives padding a value too, which must not be the largest.
        found = found.masked_fill((parts == 0).flatten(0, 1)[:, None], 0.0)
        return found.amax(dim=2).unflatten(0, parts.shape[:2])


class BiLSTM(nn.Module):
    """``nn.LSTM`` over packed sentences, so that the backward direction never reads padding."""

    def __init__(self, config: ModelConfig, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.width,
            config.width // 2,
            num_layers=config.layers,
            dropout=config.dropout if config.layers > 1 else 0.0,
            bidirectional=True,
            batch_first=True,
        )
        # PyTorch adds two biases; trained, they would take a step each where one is meant.
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter).requires_grad_(False)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        if self.compute != torch.float32:
            return self.step_by_step(x, batch.mask)
        packed = pack_padded_sequence(
            x, batch.lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        outputs, _ = self.lstm(packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        return padded

    def step_by_step(self, x: Tensor, mask: Tensor) -> Tensor:
        """The same layers with products in 16 bits and gates in float32, which nn.LSTM lacks."""
        for layer in range(self.lstm.num_layers):
            x = x if layer == 0 else self.dropout(x)
            x = torch.cat([self.direction(x, mask, f"l{layer}{r}") for r in ("", "_reverse")], -1)
        return x

    def direction(self, x: Tensor, mask: Tensor, suffix: str) -> Tensor:
        weight_ih, weight_hh, bias = (
            getattr(self.lstm, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih")
        )
        product = x.to(self.compute) @ weight_ih.to(self.compute).T
        gates = (product + bias.to(self.compute)).float()
        h = c = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        places, outputs = range(x.shape[1]), [h] * x.shape[1]
        for place in reversed(places) if suffix.endswith("_reverse") else places:
            # Cast anew at each place: its gradients are then added up in float32.
            recurrent = h.to(self.compute) @ weight_hh.to(self.compute).T
            now = gates[:, place] + recurrent.float()
            i, f, g, o = now.chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            # Padding stands at the end: read backwards, the state begins anew after it.
            h, c = (torch.where(mask[:, place, None], state, 0.0) for state in (h, c))
            outputs[place] = h
        return torch.stack(outputs, dim=1)


class Transformer(nn.Module):
    """Pre-norm layers of attention and feed-forward, sinusoids for the positions."""

    def __init__(self, config: ModelConfig, compute: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(config, compute) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        x = x + sinusoids(x.shape[1], x.shape[2]).to(x)
        for layer in self.layers:
            x = layer(x, batch.mask)
        return self.norm(x)


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, config: ModelConfig, compute: torch.dtype) -> None:
        super().__init__()
        width = config.width
        self.heads, self.compute = config.heads, compute
        self.norm_attention = nn.LayerNorm(width)
        self.query = Linear(width, width, compute)
        # Softmax cancels a key bias: its gradient is noise, which Adam would turn into steps.
        self.key = Linear(width, width, compute, bias=False)
        self.value = Linear(width, width, compute)
        self.output = Linear(width, width, compute)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.expand = Linear(width, config.feed_forward, compute)
        self.contract = Linear(config.feed_forward, width, compute)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm_attention(x)
        query, key, value = (
            part(normed).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = self.attend(query, key, value, mask[:, None, None])
        # The sum over the layers stays float32.
        x = x + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)).float())
        hidden = F.gelu(self.expand(self.norm_feed_forward(x)))
        return x + self.dropout(self.contract(hidden).float())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.compute == torch.float32:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        scores = product_in_float32(query, key.transpose(2, 3), self.compute)
        scores = scores / math.sqrt(query.shape[-1])
        weights = scores.masked_fill(~mask, -1e30).softmax(dim=-1)
        return weights.to(self.compute) @ value


def sinusoids(length: int, width: int) -> Tensor:
    """Sine and cosine of each position at width/2 frequencies from 1 down to 1/10,000."""
    rate = torch.exp(torch.arange(width // 2) * (-math.log(10_000.0) / max(1, width // 2 - 1)))
    angle = torch.arange(length)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
