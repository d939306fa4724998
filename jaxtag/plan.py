"""Sentence lengths in; static shapes and who sits where at which step out.

Everything here is a pure function of its arguments and uses numpy alone, so that every process
computes the same plan, all shapes are known before step 0, and resuming is an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from jaxtag.config import InputError

Lengths = Int[np.ndarray, " sentences"]


class PlanError(InputError):
    """Lengths or settings that no plan of static shapes can serve."""


@dataclass(frozen=True, order=True)
class Shape:
    """One static batch shape: ``rows`` rows of ``length`` cells."""

    length: int
    rows: int

    @property
    def cells(self) -> int:
        """Cells of one batch, padding included."""
        return self.length * self.rows


@dataclass(frozen=True)
class ShapePlan:
    """The shapes that batches may have, by ascending length."""

    shapes: tuple[Shape, ...]


@dataclass(frozen=True)
class Placement:
    """One batch: sentence ``sentences[i]`` starts at cell ``starts[i]`` of row ``rows[i]``."""

    shape: Shape
    sentences: Int[np.ndarray, " placed"]
    rows: Int[np.ndarray, " placed"]
    starts: Int[np.ndarray, " placed"]


@dataclass(frozen=True)
class EpochPlan:
    """One pass over the data: each sentence that has a token stands in exactly one batch."""

    batches: tuple[Placement, ...]

    @property
    def cells(self) -> int:
        """Cells of all batches, padding included."""
        return sum(batch.shape.cells for batch in self.batches)


def choose_shapes(
    lengths: Sequence[int] | Lengths,
    *,
    shapes: int = 4,
    batch_tokens: int = 512,
    row_multiple: int = 8,
) -> ShapePlan:
    """Choose at most ``shapes`` padded lengths, those that waste the fewest cells in all.

    The boundaries are optimal: dynamic programming over the histogram of the lengths, where a
    sentence costs the length that it is padded to. A shape of length T gets as many rows as fit
    into ``batch_tokens`` cells, rounded down to a multiple of ``row_multiple``, and at least
    that many. Sentences without a token take no part.

    Raises ``PlanError`` where no length is positive or a setting is not.

    >>> [shape.length for shape in choose_shapes([5, 12, 3, 40, 7, 9, 22], shapes=3).shapes]
    [9, 22, 40]
    """
    for name, value in (
        ("shapes", shapes),
        ("batch_tokens", batch_tokens),
        ("row_multiple", row_multiple),
    ):
        if value < 1:
            raise PlanError(f"{name}: expected a whole number of at least 1, found {value}")
    lengths = np.asarray(lengths, dtype=np.int64)
    distinct, counts = np.unique(lengths[lengths > 0], return_counts=True)
    if not distinct.size:
        raise PlanError("expected at least one sentence with a token, found none")
    bounds = distinct[_optimal_bounds(distinct, counts, min(shapes, distinct.size))]
    return ShapePlan(tuple(_shape(int(length), batch_tokens, row_multiple) for length in bounds))


def _optimal_bounds(
    distinct: Int[np.ndarray, " distinct"], counts: Int[np.ndarray, " distinct"], pieces: int
) -> list[int]:
    """Indices of the lengths that end each of ``pieces`` groups with the fewest padded cells."""
    before = np.concatenate([[0], np.cumsum(counts)])
    size = distinct.size
    # best[j]: fewest cells for the j shortest lengths with the groups so far.
    best = np.full(size + 1, np.iinfo(np.int64).max // 2)
    best[0] = 0
    choices = []
    for _ in range(pieces):
        cut = np.zeros(size + 1, dtype=np.int64)
        following = best.copy()
        for j in range(1, size + 1):
            cost = best[:j] + distinct[j - 1] * (before[j] - before[:j])
            cut[j] = np.argmin(cost)
            following[j] = cost[cut[j]]
        choices.append(cut)
        best = following
    ends = []
    end = size
    for cut in reversed(choices):
        if end:
            ends.append(end - 1)
            end = int(cut[end])
    return ends[::-1]


def extend_shapes(
    shapes: ShapePlan,
    lengths: Sequence[int] | Lengths,
    *,
    batch_tokens: int = 512,
    row_multiple: int = 8,
) -> ShapePlan:
    """Add shapes for the sentences that are longer than all of ``shapes``, and only for those.

    The added lengths are powers of two, so that one corpus after another meets few new shapes.

    >>> plan = choose_shapes([5, 12, 40], shapes=2)
    >>> [shape.length for shape in extend_shapes(plan, [3, 90, 100]).shapes]
    [12, 40, 128]
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    longest = shapes.shapes[-1].length
    powers = {1 << (int(length) - 1).bit_length() for length in lengths[lengths > longest]}
    return ShapePlan(
        shapes.shapes
        + tuple(_shape(length, batch_tokens, row_multiple) for length in sorted(powers))
    )


def round_rows(shapes: ShapePlan, row_multiple: int) -> ShapePlan:
    """Round the rows of every shape up to a multiple.

    >>> round_rows(ShapePlan((Shape(length=10, rows=16),)), 6).shapes
    (Shape(length=10, rows=18),)
    """
    return ShapePlan(
        tuple(
            Shape(shape.length, -(-shape.rows // row_multiple) * row_multiple)
            for shape in shapes.shapes
        )
    )


def _shape(length: int, batch_tokens: int, row_multiple: int) -> Shape:
    return Shape(length, row_multiple * max(1, batch_tokens // (row_multiple * length)))


def epoch_plan(
    shapes: ShapePlan,
    lengths: Sequence[int] | Lengths,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
) -> EpochPlan:
    """Place every sentence that has a token once, in batches of the plan's shapes.

    A sentence goes to the shortest shape that holds it. The last batch of a shape is filled up
    with empty rows. With ``shuffle`` the sentences of a shape and the batches are permuted anew
    for each (seed, epoch), from raw Philox words, whose stream numpy keeps stable across
    versions; without it they keep the file's order within a shape. The number of batches of each
    shape does not depend on seed or epoch.

    Raises ``PlanError`` where a sentence is longer than the longest shape.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    bounds = np.array([shape.length for shape in shapes.shapes])
    if lengths.size and lengths.max() > bounds[-1]:
        where = int(lengths.argmax())
        raise PlanError(
            f"sentence {where + 1} has {lengths[where]} tokens, the longest planned shape holds "
            f"{bounds[-1]}; plan the shapes over these lengths too"
        )
    words = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
    order = np.arange(lengths.size)
    if shuffle:
        order = np.argsort(words.random_raw(lengths.size), kind="stable")
    order = order[lengths[order] > 0]
    shape_of = np.searchsorted(bounds, lengths[order])
    batches = []
    for index, shape in enumerate(shapes.shapes):
        members = order[shape_of == index]
        for start in range(0, members.size, shape.rows):
            taken = members[start : start + shape.rows].astype(np.int32)
            rows = np.arange(taken.size, dtype=np.int32)
            batches.append(Placement(shape, taken, rows, np.zeros_like(rows)))
    if shuffle:
        places = np.argsort(words.random_raw(len(batches)), kind="stable")
        batches = [batches[place] for place in places]
    return EpochPlan(tuple(batches))


def efficiency(plan: EpochPlan, lengths: Sequence[int] | Lengths) -> float:
    """Share of the cells of all batches that hold a token."""
    return float(np.sum(lengths)) / plan.cells if plan.cells else 0.0
