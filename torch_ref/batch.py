"""Encoded sentences in; padded batches out, as ``DataLoader`` makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from jaxtag.encode import Encoded

PADDING, IGNORE = 0, -100


class Example(NamedTuple):
    """One sentence: int64 tensors (L,), (L, W), (L,)."""

    ids: Tensor
    parts: Tensor
    labels: Tensor


class Batch(NamedTuple):
    """Sentences padded to the longest: (B, L), (B, L, W), (B, L)."""

    ids: Tensor
    parts: Tensor
    labels: Tensor

    @property
    def mask(self) -> Tensor:
        """True where there is a token, (B, L)."""
        return self.ids != PADDING

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sentence, (B,)."""
        return self.mask.sum(dim=1)


class Sentences(Dataset[Example]):
    """The sentences of an encoded corpus that have a token."""

    def __init__(self, encoded: Encoded) -> None:
        spans = zip(encoded.offsets[:-1].tolist(), encoded.offsets[1:].tolist(), strict=True)
        self.spans = [(start, end) for start, end in spans if end > start]
        self.ids = torch.from_numpy(encoded.ids).long()
        self.parts = torch.from_numpy(encoded.parts).long()
        self.labels = torch.from_numpy(encoded.labels).long()

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, index: int) -> Example:
        span = slice(*self.spans[index])
        return Example(self.ids[span], self.parts[span], self.labels[span])

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence."""
        return [end - start for start, end in self.spans]


def collate(examples: Sequence[Example]) -> Batch:
    """Pad to the longest sentence: ids with 0, labels with -100.

    Padding labels with 0 would make padding a class: the model would be trained on it, and
    accuracy would count it.
    """
    return Batch(
        pad_sequence([e.ids for e in examples], batch_first=True, padding_value=PADDING),
        pad_sequence([e.parts for e in examples], batch_first=True, padding_value=PADDING),
        pad_sequence([e.labels for e in examples], batch_first=True, padding_value=IGNORE),
    )


class SortedMegaBatches(Sampler[list[int]]):
    """What PyTorch users do about padding: sort by length within 50 shuffled batches at a time.

    The batches are then shuffled, since a model should not see lengths fall fifty steps long.
    """

    def __init__(
        self, lengths: Sequence[int], batch_size: int, seed: int, mega_batch: int = 50
    ) -> None:
        self.lengths = torch.tensor(lengths)
        self.batch_size, self.mega_batch = batch_size, mega_batch
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.lengths) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(len(self.lengths), generator=self.generator)
        batches: list[list[int]] = []
        for mega in order.split(self.batch_size * self.mega_batch):
            by_length = mega[self.lengths[mega].argsort(descending=True, stable=True)]
            batches += [batch.tolist() for batch in by_length.split(self.batch_size)]
        for index in torch.randperm(len(batches), generator=self.generator).tolist():
            yield batches[index]
