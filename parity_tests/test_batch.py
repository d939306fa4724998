"""Batches: what stands in which cell, and outputs brought back to sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtag import plan
from jaxtag.batch import Batch, make_batch, scatter_back
from jaxtag.encode import Encoded
from jaxtag.plan import Placement, Shape

quick = settings(max_examples=60, deadline=None)
some_lengths = st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any)


def numbered(lengths: list[int], parts: int = 2) -> Encoded:
    """A corpus in which every token's values tell which token it is."""
    tokens = np.arange(sum(lengths), dtype=np.int32)
    return Encoded(
        ids=tokens + 2,
        parts=100 * (tokens[:, None] + 1) + np.arange(parts, dtype=np.int32),
        labels=tokens % 5,
        offsets=np.cumsum([0, *lengths]),
    )


def place(shape: Shape, *sentences: tuple[int, int, int]) -> Placement:
    """(sentence, row, start) of each."""
    columns = np.array(sentences, dtype=np.int32).reshape(-1, 3).T
    return Placement(shape, *columns)


def cell_by_cell(encoded: Encoded, placement: Placement) -> Batch:
    """The slow oracle: one assignment for each token and each array."""
    size = (placement.shape.rows, placement.shape.length)
    batch = Batch(
        ids_BL=np.zeros(size, int),
        parts_BLW=np.zeros((*size, encoded.parts.shape[1]), int),
        labels_BL=np.full(size, -100),
        segments_BL=np.zeros(size, int),
        positions_BL=np.zeros(size, int),
    )
    in_row = [0] * placement.shape.rows
    for sentence, row, start in zip(
        placement.sentences, placement.rows, placement.starts, strict=True
    ):
        in_row[row] += 1
        for position in range(encoded.lengths[sentence]):
            token, cell = encoded.offsets[sentence] + position, (row, start + position)
            batch.ids_BL[cell] = encoded.ids[token]
            batch.parts_BLW[cell] = encoded.parts[token]
            batch.labels_BL[cell] = encoded.labels[token]
            batch.segments_BL[cell] = in_row[row]
            batch.positions_BL[cell] = position
    return batch


def assert_same(batch: Batch, expected: Batch) -> None:
    for name, array, wanted in zip(Batch._fields, batch, expected, strict=True):
        np.testing.assert_array_equal(array, wanted, err_msg=name)


class TestMakeBatch:
    def test_a_cell_without_a_token_has_id_0_label_minus_100_and_segment_0(self):
        encoded = numbered([3, 1])
        batch = make_batch(encoded, place(Shape(4, 3), (0, 0, 0), (1, 1, 0)))
        padding = np.array([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]], dtype=bool)
        fills = {"ids_BL": 0, "parts_BLW": 0, "labels_BL": -100, "segments_BL": 0}
        for name, fill in fills.items():
            assert (getattr(batch, name)[padding] == fill).all()
        assert (batch.ids_BL[~padding] != 0).all()
        assert (batch.segments_BL[~padding] == 1).all()

    def test_all_arrays_are_int32_of_the_planned_shape(self):
        batch = make_batch(numbered([2], parts=3), place(Shape(4, 8), (0, 5, 0)))
        assert {array.dtype for array in batch} == {np.dtype(np.int32)}
        assert [array.shape for array in batch] == [(8, 4), (8, 4, 3), (8, 4), (8, 4), (8, 4)]

    @quick
    @given(some_lengths, st.integers(0, 3))
    def test_a_planned_batch_is_that_of_the_loop_over_its_cells(self, lengths, parts):
        encoded = numbered(lengths, parts)
        shapes = plan.choose_shapes(lengths, shapes=2, batch_tokens=20, row_multiple=2)
        for placement in plan.epoch_plan(shapes, lengths, seed=1).batches:
            assert_same(make_batch(encoded, placement), cell_by_cell(encoded, placement))

    def test_several_sentences_in_a_row_are_numbered_from_1_and_each_starts_at_position_0(self):
        encoded = numbered([2, 3, 1])
        batch = make_batch(encoded, place(Shape(7, 2), (1, 1, 0), (0, 1, 3), (2, 1, 6)))
        assert batch.segments_BL[1].tolist() == [1, 1, 1, 2, 2, 0, 3]
        assert batch.positions_BL[1].tolist() == [0, 1, 2, 0, 1, 0, 0]
        assert batch.ids_BL[1].tolist() == [4, 5, 6, 2, 3, 0, 7]

    @quick
    @given(st.data())
    def test_rows_of_several_sentences_are_those_of_the_loop_over_its_cells(self, data):
        lengths, sentences = [], []
        for row in range(3):
            start = 0
            for gap, length in data.draw(
                st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=3)
            ):
                sentences.append((len(lengths), row, start + gap))
                lengths.append(length)
                start += gap + length
        encoded = numbered(lengths)
        placement = place(Shape(18, 4), *data.draw(st.permutations(sentences)))
        assert_same(make_batch(encoded, placement), cell_by_cell(encoded, placement))

    def test_a_placement_of_nobody_is_padding_alone(self):
        batch = make_batch(numbered([2]), place(Shape(3, 2)))
        assert (batch.ids_BL == 0).all()
        assert (batch.labels_BL == -100).all()
        assert (batch.segments_BL == 0).all()


class TestScatterBack:
    @quick
    @given(some_lengths, st.integers(1, 40), st.integers(0, 9))
    def test_a_batch_scattered_back_is_what_it_was_made_of(self, lengths, batch_tokens, seed):
        encoded = numbered(lengths)
        shapes = plan.choose_shapes(lengths, shapes=3, batch_tokens=batch_tokens, row_multiple=2)
        outputs = [
            (placement, make_batch(encoded, placement).ids_BL)
            for placement in plan.epoch_plan(shapes, lengths, seed=seed).batches
        ]
        found = scatter_back(outputs, encoded.offsets)
        assert [len(row) for row in found] == lengths
        assert np.concatenate(found).tolist() == encoded.ids.tolist()

    def test_sentences_that_share_a_row_come_back_apart(self):
        encoded = numbered([2, 3, 1])
        placement = place(Shape(7, 2), (1, 1, 0), (0, 1, 3), (2, 1, 6))
        found = scatter_back([(placement, make_batch(encoded, placement).ids_BL)], encoded.offsets)
        assert [row.tolist() for row in found] == [[2, 3], [4, 5, 6], [7]]

    @pytest.mark.parametrize("lengths", [[0, 2], [2, 0], [0]])
    def test_a_sentence_without_tokens_comes_back_empty(self, lengths):
        encoded = numbered(lengths)
        sentence = int(np.argmax(lengths))
        outputs = [(place(Shape(2, 1), (sentence, 0, 0)), np.array([[7, 8]], np.int32))]
        found = scatter_back(outputs if any(lengths) else [], encoded.offsets)
        assert [row.tolist() for row in found] == [[7, 8] if n else [] for n in lengths]
