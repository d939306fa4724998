"""Entity and tag scores by hand, against seqeval, and where the two differ."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import scheme as seqeval_scheme
from seqeval.metrics.sequence_labeling import get_entities

from jaxtag.config import InputError
from jaxtag.labels import LabelError
from jaxtag.metrics import EntityScores, MetricsError, Scores, entity_scores, tag_scores

# Name, gold, predicted ("|" between sentences), the mode ("lenient" or the scheme of the strict
# reading), then correct, predicted and gold entities. Where seqeval 1.2.2 gives other numbers
# than these, a comment says so, and SEQEVAL_DIFFERS names the row.
TABLE = [
    ("1 I at the start", "O B-PER I-PER O", "O I-PER I-PER O", "lenient", 1, 1, 1),
    ("1 I at the start", "O B-PER I-PER O", "O I-PER I-PER O", "IOB2", 0, 0, 1),
    # seqeval finds a gold entity that starts at the I.
    ("1 I at the start", "O B-PER I-PER O", "O I-PER I-PER O", "IOB1", 0, 1, 0),
    ("2 only I", "I-PER I-PER O I-LOC", "I-PER I-PER O I-LOC", "lenient", 2, 2, 2),
    ("2 only I", "I-PER I-PER O I-LOC", "I-PER I-PER O I-LOC", "IOB2", 0, 0, 0),
    ("2 only I", "I-PER I-PER O I-LOC", "I-PER I-PER O I-LOC", "IOB1", 2, 2, 2),
    ("3 type change", "B-PER I-PER I-PER", "B-PER I-LOC I-PER", "lenient", 0, 3, 1),
    ("3 type change", "B-PER I-PER I-PER", "B-PER I-LOC I-PER", "IOB2", 0, 1, 1),
    ("4 B or I", "B-LOC B-LOC", "B-LOC I-LOC", "lenient", 0, 1, 2),
    ("4 B or I", "B-LOC B-LOC", "B-LOC I-LOC", "IOB2", 0, 1, 2),
    # seqeval gives this wrong prediction 1.0: it finds an entity in the second token.
    ("4 B or I", "B-LOC B-LOC", "B-LOC I-LOC", "IOB1", 0, 0, 1),
    ("5 I then B", "I-LOC B-LOC", "I-LOC B-LOC", "lenient", 2, 2, 2),
    ("5 I then B", "I-LOC B-LOC", "I-LOC B-LOC", "IOB1", 2, 2, 2),
    ("5 I then B", "I-LOC B-LOC", "I-LOC B-LOC", "IOB2", 1, 1, 1),
    ("6 too short", "B-ORG I-ORG I-ORG O", "B-ORG I-ORG O O", "lenient", 0, 1, 1),
    ("6 too short", "B-ORG I-ORG I-ORG O", "B-ORG I-ORG O O", "IOB2", 0, 1, 1),
    ("7 wrong type", "B-ORG I-ORG", "B-LOC I-LOC", "lenient", 0, 1, 1),
    ("7 wrong type", "B-ORG I-ORG", "B-LOC I-LOC", "IOB2", 0, 1, 1),
    ("8 two sentences", "B-PER | B-PER O", "B-PER | I-PER O", "lenient", 2, 2, 2),
    ("8 two sentences", "B-PER | B-PER O", "B-PER | I-PER O", "IOB2", 1, 1, 2),
    ("8 two sentences", "B-PER | B-PER O", "B-PER | I-PER O", "IOB1", 0, 1, 0),
    ("9 no E", "B-PER I-PER E-PER O", "B-PER I-PER I-PER O", "lenient", 1, 1, 1),
    ("9 no E", "B-PER I-PER E-PER O", "B-PER I-PER I-PER O", "IOBES", 0, 0, 1),
    ("10 E for S", "O S-LOC O", "O E-LOC O", "lenient", 1, 1, 1),
    ("10 E for S", "O S-LOC O", "O E-LOC O", "IOBES", 0, 0, 1),
    ("11 B E for S S", "S-LOC S-LOC", "B-LOC E-LOC", "lenient", 0, 1, 2),
    ("11 B E for S S", "S-LOC S-LOC", "B-LOC E-LOC", "IOBES", 0, 1, 2),
    ("12 one for two", "B-M E-M B-M E-M", "B-M I-M I-M E-M", "lenient", 0, 1, 2),
    ("12 one for two", "B-M E-M B-M E-M", "B-M I-M I-M E-M", "IOBES", 0, 1, 2),
    ("13 only I", "B-PER I-PER E-PER", "I-PER I-PER I-PER", "lenient", 1, 1, 1),
    ("13 only I", "B-PER I-PER E-PER", "I-PER I-PER I-PER", "IOBES", 0, 0, 1),
    ("14 S missed", "S-LOC S-LOC", "S-LOC O", "lenient", 1, 1, 2),
    ("14 S missed", "S-LOC S-LOC", "S-LOC O", "IOBES", 1, 1, 2),
    ("15 B for S", "S-PER S-PER", "B-PER B-PER", "lenient", 2, 2, 2),
    ("15 B for S", "S-PER S-PER", "B-PER B-PER", "IOBES", 0, 0, 2),
    ("16 E for S", "S-PER S-PER", "E-PER E-PER", "lenient", 2, 2, 2),
    ("16 E for S", "S-PER S-PER", "E-PER E-PER", "IOBES", 0, 0, 2),
    ("17 S for B", "B-PER E-PER", "S-PER E-PER", "lenient", 0, 2, 1),
    ("17 S for B", "B-PER E-PER", "S-PER E-PER", "IOBES", 0, 1, 1),
    # seqeval does not know U and L in its default mode: 0.0, one entity of two, and 1.0.
    ("18 U missed", "U-LOC U-LOC", "U-LOC O", "lenient", 1, 1, 2),
    ("18 U missed", "U-LOC U-LOC", "U-LOC O", "BILOU", 1, 1, 2),
    ("19 U then B", "U-LOC B-LOC L-LOC", "U-LOC B-LOC L-LOC", "lenient", 2, 2, 2),
    ("19 U then B", "U-LOC B-LOC L-LOC", "U-LOC B-LOC L-LOC", "BILOU", 2, 2, 2),
    ("20 one for two", "B-LOC L-LOC U-LOC", "B-LOC I-LOC L-LOC", "lenient", 0, 1, 2),
    ("20 one for two", "B-LOC L-LOC U-LOC", "B-LOC I-LOC L-LOC", "BILOU", 0, 1, 2),
    ("21 no L", "B-PER L-PER O", "B-PER I-PER O", "lenient", 1, 1, 1),
    ("21 no L", "B-PER L-PER O", "B-PER I-PER O", "BILOU", 0, 0, 1),
    ("22 no E", "I-PER E-PER O", "I-PER I-PER O", "lenient", 1, 1, 1),
    ("22 no E", "I-PER E-PER O", "I-PER I-PER O", "IOE2", 0, 0, 1),
    # seqeval warns, its report raises ValueError, and as a dictionary it holds NaN.
    ("23 only O", "O O", "O O", "lenient", 0, 0, 0),
    ("23 only O", "O O", "O O", "IOB2", 0, 0, 0),
    ("24 no gold", "O O", "O B-PER", "lenient", 0, 1, 0),
    ("24 no gold", "O O", "O B-PER", "IOB2", 0, 1, 0),
    ("25 hyphens in types", "B-ORG-EDU", "B-ORG-GOV", "lenient", 0, 1, 1),
    ("25 hyphens in types", "B-ORG-EDU", "B-ORG-GOV", "IOB2", 0, 1, 1),
    ("26 underscore", "B_PER I_PER O", "B_PER I_PER O", "lenient", 1, 1, 1),
    ("26 underscore", "B_PER I_PER O", "B_PER I_PER O", "IOB2", 1, 1, 1),
    # seqeval's strict mode raises KeyError: 'b'.
    ("27 lower case", "b-per i-per O", "b-per i-per O", "lenient", 1, 1, 1),
    ("27 lower case", "b-per i-per O", "b-per i-per O", "IOB2", 1, 1, 1),
    # seqeval makes entities of the types OUN and ERB of these, and KeyError: 'N' in strict mode.
    ("28 parts of speech", "NOUN VERB NOUN", "NOUN VERB VERB", "lenient", 0, 0, 0),
    ("28 parts of speech", "NOUN VERB NOUN", "NOUN VERB VERB", "IOB2", 0, 0, 0),
    # seqeval makes two entities, of the types B and I, and KeyError: 'P' in strict mode.
    ("29 suffixes", "PER-B PER-I O", "PER-B PER-I O", "lenient", 1, 1, 1),
    ("29 suffixes", "PER-B PER-I O", "PER-B PER-I O", "IOB2", 1, 1, 1),
    # seqeval's strict mode raises KeyError: 'M'.
    ("30 M for I", "B-PER M-PER E-PER S-LOC", "B-PER M-PER E-PER S-LOC", "lenient", 2, 2, 2),
    ("30 M for I", "B-PER M-PER E-PER S-LOC", "B-PER M-PER E-PER S-LOC", "IOBES", 2, 2, 2),
    # seqeval makes an entity of the type _ of o, and KeyError: 'o' in strict mode.
    ("31 lower-case o", "o B-PER", "o B-PER", "lenient", 1, 1, 1),
    ("31 lower-case o", "o B-PER", "o B-PER", "IOB2", 1, 1, 1),
    ("32 OTHER", "OTHER B-PER", "OTHER B-PER", "lenient", 1, 1, 1),
    ("32 OTHER", "OTHER B-PER", "OTHER B-PER", "IOB2", 1, 1, 1),
    ("33 a type too many", "B-PER O B-LOC", "B-PER B-ORG B-LOC", "lenient", 2, 3, 2),
    ("33 a type too many", "B-PER O B-LOC", "B-PER B-ORG B-LOC", "IOB2", 2, 3, 2),
]

SEQEVAL_DIFFERS = {
    *((row, "lenient") for row in (18, 19, 20, 28, 29, 31)),
    *((row, "IOB1") for row in (1, 4)),
    *((row, "IOB2") for row in (27, 28, 29, 31)),
    (30, "IOBES"),
}

quick = settings(max_examples=40, deadline=None)
TAGS = ["O", *(f"{letter}-{type_}" for letter in "BIES" for type_ in ("PER", "LOC"))]


@st.composite
def corpora(draw: st.DrawFn, tags: Sequence[str] = TAGS) -> tuple[list[list[str]], list[list[str]]]:
    """Gold and predicted tags of the same sentences, some of them empty."""
    gold, predicted = [], []
    for length in draw(st.lists(st.integers(0, 6), max_size=4)):
        sentence = st.lists(st.sampled_from(tags), min_size=length, max_size=length)
        gold.append(draw(sentence))
        predicted.append(draw(sentence))
    return gold, predicted


def sentences(text: str) -> list[list[str]]:
    return [sentence.split() for sentence in text.split("|")]


def seqeval_entities(corpus: list[list[str]], reading: str) -> list[Any]:
    if reading == "lenient":
        return get_entities(corpus)
    entities = seqeval_scheme.Entities(corpus, getattr(seqeval_scheme, reading)).entities
    return [entity for sentence in entities for entity in sentence]


def assert_all_finite(value: Any) -> None:
    if isinstance(value, dict):
        for part in value.values():
            assert_all_finite(part)
    else:
        assert math.isfinite(value)


class TestEntityScores:
    @pytest.mark.parametrize(
        ("gold", "predicted", "reading", "counts"),
        [
            pytest.param(gold, predicted, reading, tuple(counts), id=f"{name}, {reading}")
            for name, gold, predicted, reading, *counts in TABLE
        ],
    )
    def test_the_table_of_tricky_tags_is_scored_right(self, gold, predicted, reading, counts):
        scheme, mode = ("IOB2", "lenient") if reading == "lenient" else (reading, "strict")
        scores = entity_scores(sentences(gold), sentences(predicted), scheme=scheme, mode=mode)
        assert (scores.micro.correct, scores.micro.predicted, scores.micro.gold) == counts
        assert scores.micro == Scores.from_counts(*counts)
        assert (scores.scheme, scores.mode) == (scheme, mode)

    @pytest.mark.filterwarnings("ignore:.*seems not to be NE tag")
    def test_the_table_names_every_row_where_seqeval_differs(self):
        differs = set()
        for name, gold, predicted, reading, *counts in TABLE:
            try:
                wanted, found = (
                    set(seqeval_entities(sentences(text), reading)) for text in (gold, predicted)
                )
                theirs = [len(wanted & found), len(found), len(wanted)]
            except KeyError:
                theirs = None
            if theirs != counts:
                differs.add((int(name.split()[0]), reading))
        assert differs == SEQEVAL_DIFFERS

    def test_the_f1_of_the_table_is_the_published_one(self):
        assert Scores.from_counts(1, 1, 2)[:3] == pytest.approx((1.0, 0.5, 2 / 3))
        assert Scores.from_counts(2, 3, 2)[:3] == pytest.approx((2 / 3, 1.0, 0.8))

    def test_macro_is_the_mean_over_the_types_of_either_side(self):
        scores = entity_scores(
            [["B-PER", "O", "B-LOC"]], [["B-PER", "B-ORG", "B-LOC"]], scheme="IOB2"
        )
        assert list(scores.per_type) == ["LOC", "ORG", "PER"]
        assert scores.per_type["ORG"] == Scores(0.0, 0.0, 0.0, 0, 1, 0)
        assert scores.macro[:3] == pytest.approx((2 / 3, 2 / 3, 2 / 3))
        assert scores.macro[3:] == (2, 3, 2)

    def test_macro_f1_is_the_mean_of_the_f1s(self):
        scores = entity_scores(
            [["B-PER", "B-PER", "B-LOC", "O"]], [["B-PER", "O", "B-LOC", "B-LOC"]], scheme="IOB2"
        )
        assert scores.macro.f1 == pytest.approx(2 / 3)
        assert scores.macro[:2] == pytest.approx((0.75, 0.75))

    def test_nothing_at_all_scores_zero(self):
        zero = Scores(0.0, 0.0, 0.0, 0, 0, 0)
        for gold in ([], [[]], [["O"]]):
            scores = entity_scores(gold, gold, scheme="IOB2")
            assert scores == EntityScores("IOB2", "lenient", zero, zero, {})

    def test_no_entity_crosses_from_one_sentence_to_the_next(self):
        scores = entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["I-PER"]], scheme="IOB2")
        assert scores.micro.gold == 2

    def test_a_type_seen_only_in_malformed_chunks_is_no_type_in_strict_mode(self):
        gold, predicted = [["O", "B-PER"]], [["I-LOC", "B-PER"]]
        assert list(entity_scores(gold, predicted, scheme="IOB2").per_type) == ["LOC", "PER"]
        strict = entity_scores(gold, predicted, scheme="IOB2", mode="strict")
        assert list(strict.per_type) == ["PER"]

    def test_a_shorter_prediction_is_an_error_that_names_the_sentence(self):
        with pytest.raises(MetricsError, match=r"sentence 2: .* found 2 predicted and 3 gold"):
            entity_scores([["O"], ["B-PER", "O", "O"]], [["O"], ["B-PER", "O"]], scheme="IOB2")

    def test_a_missing_sentence_is_an_error(self):
        with pytest.raises(MetricsError, match="found 1 predicted and 2 gold"):
            entity_scores([["O"], ["O"]], [["O"]], scheme="IOB2")

    def test_sentences_must_be_lists_of_tags(self):
        with pytest.raises(MetricsError, match="sentence 1: expected a sequence of tags"):
            entity_scores(["B-PER", "O"], ["B-PER", "O"], scheme="IOB2")

    def test_errors_are_mistakes_of_the_user(self):
        assert issubclass(MetricsError, InputError)

    def test_plain_tags_and_unknown_schemes_are_refused_even_without_sentences(self):
        with pytest.raises(LabelError, match="plain tags have no entities"):
            entity_scores([], [], scheme="plain")
        with pytest.raises(LabelError, match="found 'BIO'"):
            entity_scores([], [], scheme="BIO")
        with pytest.raises(LabelError, match="found 'exact'"):
            entity_scores([], [], scheme="IOB2", mode="exact")

    def test_the_json_form_is_what_a_result_file_holds(self):
        scores = entity_scores([["B-PER", "O"]], [["B-PER", "B-LOC"]], scheme="IOB2")
        ratios = {"precision": 0.5, "recall": 1.0, "f1": 2 / 3}
        assert scores.to_json() == {
            "micro": {**ratios, "correct": 1, "predicted": 2, "gold": 1},
            "macro": {
                "precision": 0.5, "recall": 0.5, "f1": 0.5, "correct": 1, "predicted": 2, "gold": 1
            },
            "per_type": {
                "LOC": {
                    "precision": 0.0, "recall": 0.0, "f1": 0.0,
                    "correct": 0, "predicted": 1, "gold": 0,
                },
                "PER": {
                    "precision": 1.0, "recall": 1.0, "f1": 1.0,
                    "correct": 1, "predicted": 1, "gold": 1,
                },
            },
        }  # fmt: skip
        assert json.loads(json.dumps(scores.to_json())) == scores.to_json()

    @given(corpora())
    @quick
    def test_lenient_counts_are_those_of_seqeval(self, corpus):
        gold, predicted = corpus
        wanted, found = set(get_entities(gold)), set(get_entities(predicted))
        scores = entity_scores(gold, predicted, scheme="IOBES")
        assert scores.micro[3:] == (len(wanted & found), len(found), len(wanted))
        assert set(scores.per_type) == {type_ for type_, _, _ in wanted | found}

    @pytest.mark.parametrize("mode", ["lenient", "strict"])
    @given(corpus=corpora())
    @quick
    def test_scores_are_finite_and_gold_and_predicted_are_symmetric(self, mode, corpus):
        gold, predicted = corpus
        there = entity_scores(gold, predicted, scheme="IOBES", mode=mode)
        back = entity_scores(predicted, gold, scheme="IOBES", mode=mode)
        assert_all_finite(there.to_json())
        assert (there.micro.precision, there.micro.f1) == (back.micro.recall, back.micro.f1)
        assert there.micro.correct == sum(scores.correct for scores in there.per_type.values())

    @given(corpora())
    @quick
    def test_the_order_of_the_sentences_changes_nothing(self, corpus):
        gold, predicted = corpus
        assert entity_scores(gold, predicted, scheme="IOBES") == entity_scores(
            gold[::-1], predicted[::-1], scheme="IOBES"
        )


class TestTagScores:
    def test_accuracy_is_one_ratio_over_all_tokens(self):
        scores = tag_scores([["A"], ["B", "B", "A"]], [["A"], ["A", "A", "A"]])
        assert (scores.accuracy, scores.correct, scores.total) == (0.5, 2, 4)
        assert scores.per_tag == {
            "A": Scores(0.5, 1.0, 2 / 3, 2, 4, 2),
            "B": Scores(0.0, 0.0, 0.0, 0, 0, 2),
        }
        assert scores.macro == Scores(0.25, 0.5, 1 / 3, 2, 4, 4)

    def test_no_tokens_score_zero(self):
        scores = tag_scores([[]], [[]])
        assert (scores.accuracy, scores.correct, scores.total, scores.per_tag) == (0.0, 0, 0, {})
        assert_all_finite(scores.to_json())

    def test_unequal_lengths_are_an_error_that_names_the_sentence(self):
        with pytest.raises(MetricsError, match=r"sentence 1: .* found 1 predicted and 2 gold"):
            tag_scores([["A", "B"]], [["A"]])

    def test_the_json_form_is_what_a_result_file_holds(self):
        one = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "correct": 1, "predicted": 1, "gold": 1}
        assert tag_scores([["A"]], [["A"]]).to_json() == {
            "accuracy": 1.0, "correct": 1, "total": 1, "macro": one, "per_tag": {"A": one}
        }  # fmt: skip

    @given(corpora(tags=["DET", "NOUN", "VERB"]))
    @quick
    def test_correct_tokens_are_counted_one_by_one(self, corpus):
        gold, predicted = corpus
        pairs = [
            (tag, guess)
            for tags, guesses in zip(gold, predicted, strict=True)
            for tag, guess in zip(tags, guesses, strict=True)
        ]
        scores = tag_scores(gold, predicted)
        assert scores.total == len(pairs)
        assert scores.correct == sum(tag == guess for tag, guess in pairs)
