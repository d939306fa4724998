"""Shapes and epoch plans: fewest padded cells, every sentence once, the same plan everywhere."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import PERCENT_OF_TWO_DECIMALS

from jaxtag import corpus, plan
from jaxtag.plan import EpochPlan, Placement, PlanError, Shape, ShapePlan

quick = settings(max_examples=60, deadline=None)
some_lengths = st.lists(st.integers(0, 30), min_size=1, max_size=40).filter(any)
some_settings = st.fixed_dictionaries(
    {
        "shapes": st.integers(1, 6),
        "batch_tokens": st.integers(1, 200),
        "row_multiple": st.integers(1, 8),
    }
)


def padded_to_the_longest(lengths: list[int], first: int) -> Placement:
    """One batch of consecutive sentences, a row each, as long as the longest of them."""
    places = np.arange(len(lengths), dtype=np.int32)
    shape = Shape(length=max(lengths), rows=len(lengths))
    return Placement(shape, first + places, places, np.zeros_like(places))


def placed(epoch: EpochPlan) -> list[int]:
    return [int(sentence) for batch in epoch.batches for sentence in batch.sentences]


class TestEfficiency:
    def test_each_batch_of_three_padded_to_its_longest_has_the_cells_of_the_readme(self):
        lengths = [5, 12, 3, 40, 7, 9, 22]
        batches = [
            EpochPlan((padded_to_the_longest(lengths[start : start + 3], start),))
            for start in (0, 3, 6)
        ]
        tokens = [sum(lengths[start : start + 3]) for start in (0, 3, 6)]
        assert [(n, batch.cells) for n, batch in zip(tokens, batches, strict=True)] == [
            (20, 36),
            (56, 120),
            (22, 22),
        ]

    def test_three_at_a_time_in_order_98_of_178_cells_hold_a_token(self):
        lengths = [5, 12, 3, 40, 7, 9, 22]
        epoch = EpochPlan(
            tuple(padded_to_the_longest(lengths[start : start + 3], start) for start in (0, 3, 6))
        )
        assert (sum(lengths), epoch.cells) == (98, 178)
        percent = 100 * plan.efficiency(epoch, lengths)
        assert percent == pytest.approx(55.06, abs=PERCENT_OF_TWO_DECIMALS)

    def test_a_plan_without_batches_has_efficiency_0(self):
        assert plan.efficiency(EpochPlan(()), [0, 0]) == 0.0


class TestChooseShapes:
    @quick
    @given(st.lists(st.integers(1, 12), min_size=1, max_size=25), st.integers(1, 5))
    def test_no_choice_of_as_many_lengths_wastes_fewer_cells(self, lengths, number):
        def cells(bounds: tuple[int, ...]) -> int:
            return sum(min(bound for bound in bounds if bound >= n) for n in lengths)

        distinct = sorted(set(lengths))
        fewest = min(
            cells((*others, distinct[-1]))
            for others in itertools.combinations(distinct[:-1], min(number, len(distinct)) - 1)
        )
        chosen = plan.choose_shapes(lengths, shapes=number).shapes
        assert len(chosen) == min(number, len(distinct))
        assert cells(tuple(shape.length for shape in chosen)) == fewest

    @quick
    @given(some_lengths, some_settings)
    def test_rows_are_a_multiple_and_within_the_budget_unless_one_multiple_exceeds_it(
        self, lengths, options
    ):
        for shape in plan.choose_shapes(lengths, **options).shapes:
            multiple, budget = options["row_multiple"], options["batch_tokens"]
            assert shape.rows % multiple == 0
            assert shape.cells <= budget or shape.rows == multiple
            assert shape.cells + multiple * shape.length > budget

    def test_lengths_ascend_and_the_last_is_the_longest_sentence(self):
        shapes = plan.choose_shapes([7, 1, 0, 30, 2, 7, 4], shapes=4).shapes
        lengths = [shape.length for shape in shapes]
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == 30

    def test_fewer_distinct_lengths_than_shapes_pad_nothing(self):
        shapes = plan.choose_shapes([4, 4, 9], shapes=6).shapes
        assert [shape.length for shape in shapes] == [4, 9]

    @pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
    def test_no_sentence_with_a_token_is_an_error(self, lengths):
        with pytest.raises(PlanError, match="at least one sentence with a token"):
            plan.choose_shapes(lengths)

    @pytest.mark.parametrize("name", ["shapes", "batch_tokens", "row_multiple"])
    def test_a_setting_below_1_is_an_error_naming_it(self, name):
        with pytest.raises(PlanError, match=f"{name}: expected .* at least 1, found 0"):
            plan.choose_shapes([3], **{name: 0})

    def test_shapes_planned_over_a_public_corpus_hold_every_sentence_of_it(self, data_dir):
        lengths = [
            len(sentence.tokens)
            for name in ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
            for sentence in corpus.read(data_dir / "wnut17" / name).sentences
        ]
        shapes = plan.choose_shapes(lengths, shapes=6, batch_tokens=1024)
        epoch = plan.epoch_plan(shapes, lengths)
        assert len(shapes.shapes) == 6
        assert sorted(placed(epoch)) == list(range(len(lengths)))
        for batch in epoch.batches:
            assert max(lengths[sentence] for sentence in batch.sentences) <= batch.shape.length
        one_shape = plan.epoch_plan(plan.choose_shapes(lengths, shapes=1), lengths)
        assert epoch.cells < one_shape.cells / 2


class TestExtendShapes:
    @quick
    @given(some_lengths, st.lists(st.integers(0, 300), max_size=20), some_settings)
    def test_the_shapes_that_were_there_stay_and_added_ones_are_longer_powers_of_two(
        self, lengths, more, options
    ):
        shapes = plan.choose_shapes(lengths, **options)
        size = {name: options[name] for name in ("batch_tokens", "row_multiple")}
        found = plan.extend_shapes(shapes, more, **size).shapes
        assert found[: len(shapes.shapes)] == shapes.shapes
        added, longest = found[len(shapes.shapes) :], shapes.shapes[-1].length
        powers = [2**exponent for exponent in range(10)]
        needed = {min(p for p in powers if p >= n) for n in more if n > longest}
        assert [shape.length for shape in added] == sorted(needed)
        for shape in added:
            multiple, budget = size["row_multiple"], size["batch_tokens"]
            assert shape.rows % multiple == 0
            assert shape.cells <= budget or shape.rows == multiple
            assert shape.cells + multiple * shape.length > budget

    @quick
    @given(some_lengths, st.lists(st.integers(0, 300), max_size=20))
    def test_every_sentence_finds_a_place_in_them(self, lengths, more):
        shapes = plan.extend_shapes(plan.choose_shapes(lengths), more)
        epoch = plan.epoch_plan(shapes, more)
        assert sorted(placed(epoch)) == [i for i, length in enumerate(more) if length]

    def test_sentences_that_the_shapes_hold_add_none(self):
        shapes = plan.choose_shapes([3, 9])
        assert plan.extend_shapes(shapes, [0, 1, 5, 9]) == shapes
        assert plan.extend_shapes(shapes, []) == shapes

    def test_a_sentence_of_a_power_of_two_is_not_padded(self):
        shapes = plan.extend_shapes(plan.choose_shapes([3]), [64, 33, 65])
        assert [shape.length for shape in shapes.shapes] == [3, 64, 128]


class TestRoundRows:
    @quick
    @given(some_lengths, some_settings, st.integers(1, 12))
    def test_rows_become_the_next_multiple_and_lengths_stay(self, lengths, options, multiple):
        shapes = plan.choose_shapes(lengths, **options).shapes
        rounded = plan.round_rows(ShapePlan(shapes), multiple).shapes
        for shape, found in zip(shapes, rounded, strict=True):
            assert found.length == shape.length
            assert found.rows % multiple == 0
            assert shape.rows <= found.rows < shape.rows + multiple


class TestEpochPlan:
    @quick
    @given(some_lengths, some_settings, st.integers(0, 2**32 - 1), st.integers(0, 5), st.booleans())
    def test_every_sentence_with_a_token_stands_once_in_a_row_that_holds_it(
        self, lengths, options, seed, epoch, shuffle
    ):
        shapes = plan.choose_shapes(lengths, **options)
        found = plan.epoch_plan(shapes, lengths, seed=seed, epoch=epoch, shuffle=shuffle)
        assert sorted(placed(found)) == [i for i, length in enumerate(lengths) if length]
        for batch in found.batches:
            assert batch.shape in shapes.shapes
            cells = Counter(
                (int(row), cell)
                for i, row, start in zip(batch.sentences, batch.rows, batch.starts, strict=True)
                for cell in range(start, start + lengths[i])
            )
            assert max(cells.values()) == 1
            assert all(
                0 <= row < batch.shape.rows and 0 <= cell < batch.shape.length
                for row, cell in cells
            )

    @quick
    @given(some_lengths, some_settings)
    def test_a_sentence_goes_to_the_shortest_shape_that_holds_it(self, lengths, options):
        shapes = plan.choose_shapes(lengths, **options)
        for batch in plan.epoch_plan(shapes, lengths).batches:
            shorter = [s.length for s in shapes.shapes if s.length < batch.shape.length]
            assert all(lengths[i] > max(shorter, default=0) for i in batch.sentences)

    @quick
    @given(some_lengths, some_settings, st.integers(0, 99), st.integers(1, 99))
    def test_the_batches_of_each_shape_are_as_many_in_every_epoch(
        self, lengths, options, seed, epoch
    ):
        shapes = plan.choose_shapes(lengths, **options)
        first = plan.epoch_plan(shapes, lengths)
        other = plan.epoch_plan(shapes, lengths, seed=seed, epoch=epoch)
        assert Counter(b.shape for b in first.batches) == Counter(b.shape for b in other.batches)

    def test_the_same_seed_and_epoch_give_the_same_order(self):
        lengths = list(range(1, 60))
        shapes = plan.choose_shapes(lengths)
        one, other = (plan.epoch_plan(shapes, lengths, seed=5, epoch=2) for _ in range(2))
        assert placed(one) == placed(other)

    @pytest.mark.parametrize("other", [{"seed": 5, "epoch": 3}, {"seed": 6, "epoch": 2}])
    def test_another_epoch_or_seed_gives_another_order(self, other):
        lengths = list(range(1, 60))
        shapes = plan.choose_shapes(lengths)
        one = plan.epoch_plan(shapes, lengths, seed=5, epoch=2)
        assert placed(one) != placed(plan.epoch_plan(shapes, lengths, **other))

    def test_the_order_of_a_seed_is_pinned_whatever_the_version_of_numpy(self):
        lengths = list(range(1, 11))
        shapes = plan.choose_shapes(lengths, shapes=2, batch_tokens=8, row_multiple=2)
        epochs = [plan.epoch_plan(shapes, lengths, seed=3, epoch=epoch) for epoch in (0, 1)]
        assert [[batch.sentences.tolist() for batch in epoch.batches] for epoch in epochs] == [
            [[6, 8], [4, 3], [1, 2], [9], [0], [5, 7]],
            [[1], [8, 5], [6], [9, 7], [3, 4], [0, 2]],
        ]

    def test_without_shuffling_sentences_keep_their_order_within_a_shape(self):
        lengths = [9, 2, 8, 1, 9, 2]
        shapes = ShapePlan((Shape(length=2, rows=2), Shape(length=9, rows=2)))
        found = plan.epoch_plan(shapes, lengths, seed=1, epoch=4, shuffle=False)
        assert [b.sentences.tolist() for b in found.batches] == [[1, 3], [5], [0, 2], [4]]

    def test_a_sentence_that_no_shape_holds_is_an_error_naming_it(self):
        shapes = plan.choose_shapes([3, 5])
        with pytest.raises(PlanError, match=r"sentence 2 has 6 tokens, .* holds 5"):
            plan.epoch_plan(shapes, [4, 6, 5])

    def test_sentences_without_tokens_alone_make_no_batch(self):
        assert plan.epoch_plan(plan.choose_shapes([3]), [0, 0]).batches == ()
