"""A placement in; a ``Batch`` of its static shape out, and outputs scattered back to sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Int

from jaxtag.encode import IGNORE, PADDING, Encoded
from jaxtag.plan import Placement


class Batch(NamedTuple):
    """B rows of L cells; a cell that holds no token has id 0, label -100 and segment 0.

    All int32: numpy arrays on the host, jax arrays once they are placed on devices.
    """

    ids_BL: Int[Array, "B L"]
    parts_BLW: Int[Array, "B L W"]
    """Ids of what is inside each token, 0 for none; W is 0 where the model sees words only."""
    labels_BL: Int[Array, "B L"]
    segments_BL: Int[Array, "B L"]
    """Which sentence of its row a cell belongs to, from 1."""
    positions_BL: Int[Array, "B L"]
    """Place of the token in its sentence, from 0."""


def make_batch(encoded: Encoded, placement: Placement) -> Batch:
    """Copy the placed sentences into int32 arrays of the placement's shape."""
    shape = placement.shape
    starts = encoded.offsets[placement.sentences]
    lengths = encoded.offsets[placement.sentences + 1] - starts
    within = _ranges(lengths)
    source = np.repeat(starts, lengths) + within
    first = placement.rows.astype(np.int64) * shape.length + placement.starts
    target = np.repeat(first, lengths) + within

    def spread(values: Int[np.ndarray, ...], fill: int) -> Any:
        cells = np.full((shape.cells, *values.shape[1:]), fill, dtype=np.int32)
        cells[target] = values
        return cells.reshape(shape.rows, shape.length, *values.shape[1:])

    # Sentences of one row are numbered in the order in which they were placed there.
    order = np.argsort(placement.rows, kind="stable")
    segment = np.empty(order.size, dtype=np.int64)
    segment[order] = _ranges(np.bincount(placement.rows, minlength=shape.rows)) + 1
    return Batch(
        ids_BL=spread(encoded.ids[source], PADDING),
        parts_BLW=spread(encoded.parts[source], 0),
        labels_BL=spread(encoded.labels[source], IGNORE),
        segments_BL=spread(np.repeat(segment, lengths), 0),
        positions_BL=spread(within, 0),
    )


def scatter_back(
    outputs: Iterable[tuple[Placement, Int[np.ndarray, "_B _L"]]],  # each of its own shape
    offsets: Int[np.ndarray, " sentences_and_one"],
) -> list[Int[np.ndarray, " tokens"]]:
    """Bring one value per cell back to one array per sentence, in the order of the corpus.

    Cells that hold no token are dropped; a sentence without tokens gets an empty array.
    """
    values = np.full(int(offsets[-1]), -1, dtype=np.int32)
    for placement, output_BL in outputs:
        starts = offsets[placement.sentences]
        lengths = offsets[placement.sentences + 1] - starts
        within = _ranges(lengths)
        rows = np.repeat(placement.rows, lengths)
        values[np.repeat(starts, lengths) + within] = output_BL[
            rows, np.repeat(placement.starts, lengths) + within
        ]
    if (values < 0).any():
        raise ValueError("scatter_back: expected outputs for every token, found some without")
    return np.split(values, offsets[1:-1])[: offsets.size - 1]


def _ranges(lengths: Int[np.ndarray, " n"]) -> Int[np.ndarray, " total"]:
    """0 … n-1 for each n of ``lengths``, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if ends.size else 0) - np.repeat(ends - lengths, lengths)
