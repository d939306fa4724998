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

PART_WIDTH = 32


class Tagger(nn.Module):
    """A batch to logits (B, L, C): embedding, encoder, head."""

    def __init__(self, config: ModelConfig, *, words: int, kind: str, parts: int, classes: int):
        super().__init__()
        self.embed = Embedding(words, kind, parts, config.width)
        if config.kind == "bilstm":
            self.encoder: nn.Module = BiLSTM(config)
        else:
            self.encoder = Transformer(config)
        self.head = nn.Linear(config.width, classes)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Logits of every class for every cell; those of padding mean nothing."""
        x = self.dropout(self.embed(batch))
        x = self.dropout(self.encoder(x, batch))
        return self.head(x)


class Embedding(nn.Module):
    """A word's embedding plus what a small layer reads from inside the word."""

    def __init__(self, words: int, kind: str, parts: int, width: int) -> None:
        super().__init__()
        # padding_idx keeps row 0 at zero: it gets no gradient.
        self.words = nn.Embedding(words, width, padding_idx=0)
        self.inside: nn.Module | None = None
        if kind == "affixes":
            self.inside = Affixes(parts, width)
        elif kind == "characters":
            self.inside = Characters(parts, width)

    def forward(self, batch: Batch) -> Tensor:
        x = self.words(batch.ids)
        return x if self.inside is None else x + self.inside(batch.parts)


class Affixes(nn.Module):
    """Embeddings of a token's affixes, side by side, through a linear layer."""

    def __init__(self, parts: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(parts, PART_WIDTH, padding_idx=0)
        self.project = nn.Linear(PARTS["affixes"] * PART_WIDTH, width)

    def forward(self, parts: Tensor) -> Tensor:
        return self.project(self.table(parts).flatten(2))


class Characters(nn.Module):
    """A convolution of width 3 over a token's characters, and the maximum over their places."""

    def __init__(self, parts: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(parts, PART_WIDTH, padding_idx=0)
        self.convolve = nn.Conv1d(PART_WIDTH, width, kernel_size=3, padding=1)

    def forward(self, parts: Tensor) -> Tensor:
        characters = self.table(parts).flatten(0, 1).transpose(1, 2)
        found = F.relu(self.convolve(characters))
        found = found.masked_fill((parts == 0).flatten(0, 1)[:, None], 0.0)
        return found.amax(dim=2).unflatten(0, parts.shape[:2])


class BiLSTM(nn.Module):
    """``nn.LSTM`` over packed sentences, so that the backward direction never reads padding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
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
        packed = pack_padded_sequence(
            x, batch.lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.lstm(packed)[0], True, total_length=x.shape[1])[0]


class Transformer(nn.Module):
    """Pre-norm layers of attention and feed-forward, sinusoids for the positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        x = x + sinusoids(x.shape[1], x.shape[2]).to(x)
        for layer in self.layers:
            x = layer(x, batch.mask)
        return self.norm(x)


class Layer(nn.Module):
    """Attention and feed-forward, each normalised before and added after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        # Softmax cancels a key bias: its gradient is noise, which Adam would turn into steps.
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.expand = nn.Linear(width, config.feed_forward)
        self.contract = nn.Linear(config.feed_forward, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norm_attention(x)
        query, key, value = (
            part(normed).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
        x = x + self.dropout(self.output(mixed.transpose(1, 2).flatten(2)))
        hidden = F.gelu(self.expand(self.norm_feed_forward(x)))
        return x + self.dropout(self.contract(hidden))


def sinusoids(length: int, width: int) -> Tensor:
    """Sine and cosine of each position at width/2 frequencies from 1 down to 1/10,000."""
    rate = torch.exp(torch.arange(width // 2) * (-math.log(10_000.0) / max(1, width // 2 - 1)))
    angle = torch.arange(length)[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
