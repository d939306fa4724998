"""Spans against seqeval and by hand; tags and spans as inverses; schemes found in real files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import scheme as seqeval_scheme
from seqeval.metrics.sequence_labeling import get_entities

from jaxtag.labels import (
    SCHEMES,
    LabelError,
    Span,
    complete_labels,
    detect_scheme,
    malformed,
    spans,
    split_tag,
    tags_from_spans,
)

SPAN_SCHEMES = [scheme for scheme in SCHEMES if scheme != "plain"]
LETTERS = {
    "IO": "I",
    "IOB1": "IB",
    "IOB2": "IB",
    "IOE1": "IE",
    "IOE2": "IE",
    "IOBES": "IBES",
    "BILOU": "IBLU",
}
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
quick = settings(max_examples=40, deadline=None)


def tag_lists(
    letters: str, types: tuple[str, ...] = ("PER", "LOC")
) -> st.SearchStrategy[list[str]]:
    tags = [f"{letter}-{type_}" for letter in letters for type_ in types]
    return st.lists(st.sampled_from(["O", *tags]), max_size=12)


def all_tag_lists(letters: str, length: int) -> list[list[str]]:
    tags = ["O", *(f"{letter}-{type_}" for letter in letters for type_ in ("X", "Y"))]
    return [
        list(tags_)
        for width in range(length + 1)
        for tags_ in itertools.product(tags, repeat=width)
    ]


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans that do not overlap, many of them adjacent, and the length of their sentence."""
    found, position = [], 0
    for gap, width, type_ in draw(
        st.lists(
            st.tuples(
                st.integers(0, 2), st.integers(1, 4), st.sampled_from(["PER", "LOC", "ORG-EDU", ""])
            ),
            max_size=6,
        )
    ):
        found.append(Span(type_, position + gap, position + gap + width))
        position += gap + width
    return found, position + draw(st.integers(0, 2))


def merged(found: list[Span]) -> list[Span]:
    """Adjacent spans of one type made one: all that IO can say."""
    result: list[Span] = []
    for span in found:
        if result and result[-1].end == span.start and result[-1].type == span.type:
            result[-1] = Span(span.type, result[-1].start, span.end)
        else:
            result.append(span)
    return result


def seqeval_lenient(tags: list[str]) -> list[Span]:
    return [Span(type_, first, last + 1) for type_, first, last in get_entities(tags)]


def seqeval_strict(tags: list[str], scheme: str) -> list[Span]:
    (found,) = seqeval_scheme.Entities([tags], getattr(seqeval_scheme, scheme)).entities
    return [Span(entity.tag, entity.start, entity.end) for entity in found]


def columns(path: Path, column: int, delimiter: str) -> list[list[str]]:
    if not path.exists():
        pytest.skip(f"the data sets are not beside the checkout: {path} is missing")
    found: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line.strip():
            found.append([])
        elif delimiter in line and not line.startswith(("-DOCSTART-", "# ")):
            found[-1].append(line.split(delimiter)[column])
    return [tags for tags in found if tags]


class TestSplitTag:
    @pytest.mark.parametrize(
        ("tag", "expected"),
        [
            ("O", ("O", "")),
            ("o", ("O", "")),
            ("0", ("O", "")),
            ("", ("O", "")),
            ("-", ("O", "")),
            ("OTHER", ("O", "")),
            ("O-PER", ("O", "")),
            ("o-per", ("O", "")),
            ("PER-O", ("O", "")),
            ("\u0131-PER", ("O", "")),  # a dotless i, whose upper case is I
            ("NOUN", ("O", "")),
            ("-X-", ("O", "")),
            ("-LRB-", ("O", "")),
            ("B-PER", ("B", "PER")),
            ("b-per", ("B", "per")),
            ("B-creative-work", ("B", "creative-work")),
            ("B-ORG-EDU", ("B", "ORG-EDU")),
            ("I-VITAMIN-E", ("I", "VITAMIN-E")),
            ("L-PER", ("E", "PER")),
            ("U-PER", ("S", "PER")),
            ("M-PER", ("I", "PER")),
            ("B_PER", ("B", "PER")),
            ("B_VITAMIN-E", ("B", "VITAMIN-E")),
            ("PER-B", ("B", "PER")),
            ("creative-work-l", ("E", "creative-work")),
            ("B", ("B", "")),
            ("s", ("S", "")),
            ("B-", ("B", "")),
        ],
    )
    def test_a_tag_is_read_as_letter_and_type(self, tag, expected):
        assert split_tag(tag) == expected


class TestSpans:
    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    def test_no_tokens_have_no_spans(self, scheme):
        assert spans([], scheme) == []
        assert spans([], scheme, "strict") == []

    @pytest.mark.parametrize("mode", ["lenient", "strict"])
    def test_plain_tags_have_no_spans(self, mode):
        with pytest.raises(LabelError, match="plain tags have no entities"):
            spans(["NOUN"], "plain", mode)

    def test_an_unknown_scheme_is_answered_with_the_known_ones(self):
        for call in (
            lambda: spans(["O"], "BIO"),
            lambda: malformed(["O"], "BIO"),
            lambda: complete_labels(["O"], "BIO"),
            lambda: tags_from_spans([], 1, "BIO"),
        ):
            with pytest.raises(LabelError, match=r"IOBES, BILOU, plain; found 'BIO'"):
                call()

    def test_an_unknown_mode_is_answered_with_the_known_ones(self):
        with pytest.raises(LabelError, match="lenient, strict; found 'exact'"):
            spans(["O"], "IOB2", "exact")

    def test_a_string_is_not_a_sentence(self):
        with pytest.raises(LabelError, match="found the string 'BIO'"):
            spans("BIO", "IOB2")

    @given(tag_lists("BIES"))
    @quick
    def test_lenient_spans_are_those_of_seqeval(self, tags):
        for scheme in SPAN_SCHEMES:
            assert spans(tags, scheme) == seqeval_lenient(tags)

    @given(tag_lists("BIES", types=("PER", "LOC", "creative-work", "ORG-EDU")))
    @quick
    def test_bilou_letters_and_case_and_underscore_change_no_lenient_span(self, tags):
        bilou = [tag.translate({ord("E"): "L", ord("S"): "U"}) for tag in tags]
        spelled = [tag.replace("-", "_", 1) for tag in tags]
        letters = [(tag[:1].lower() + tag[1:]) for tag in tags]
        assert [span[1:] for span in spans(bilou, "BILOU")] == [
            span[1:] for span in spans(tags, "BILOU")
        ]
        assert spans(spelled, "IOBES") == spans(tags, "IOBES")
        assert spans(letters, "IOBES") == spans(tags, "IOBES")

    @pytest.mark.parametrize("scheme", ["IOB2", "IOE2", "IOBES", "BILOU"])
    def test_strict_spans_of_short_sentences_are_those_of_seqeval(self, scheme):
        for tags in all_tag_lists(LETTERS[scheme], 5 if len(LETTERS[scheme]) == 2 else 3):
            assert spans(tags, scheme, "strict") == seqeval_strict(tags, scheme), tags

    @pytest.mark.parametrize("scheme", ["IOB2", "IOE2", "IOBES", "BILOU"])
    @given(data=st.data())
    @quick
    def test_strict_spans_are_those_of_seqeval(self, scheme, data):
        tags = data.draw(tag_lists(LETTERS[scheme]))
        assert spans(tags, scheme, "strict") == seqeval_strict(tags, scheme)

    def test_strict_iob1_differs_from_seqeval_only_where_a_b_is_not_allowed(self):
        for tags in all_tag_lists("IB", 5):
            if spans(tags, "IOB1", "strict") != seqeval_strict(tags, "IOB1"):
                assert any(tags[position][0] == "B" for position in malformed(tags, "IOB1")), tags

    @pytest.mark.parametrize(
        ("tags", "ours", "theirs"),
        [
            # A malformed chunk is dropped whole; seqeval starts an entity at its second token.
            (["B-X", "I-X"], [], [Span("X", 1, 2)]),
            (["O", "B-X", "I-X", "I-X"], [], [Span("X", 2, 4)]),
            # A right B is an entity whatever follows; seqeval drops it before a B of another type.
            (
                ["I-X", "B-X", "B-Y"],
                [Span("X", 0, 1), Span("X", 1, 2)],
                [Span("X", 0, 1)],
            ),
        ],
    )
    def test_strict_iob1_is_right_where_seqeval_is_not(self, tags, ours, theirs):
        assert spans(tags, "IOB1", "strict") == ours
        assert seqeval_strict(tags, "IOB1") == theirs

    def test_strict_ioe1_differs_from_seqeval_only_by_entities_of_one_token_that_end_in_e(self):
        for tags in all_tag_lists("IE", 5):
            ours, theirs = spans(tags, "IOE1", "strict"), seqeval_strict(tags, "IOE1")
            missed = [span for span in ours if span not in theirs]
            assert [span for span in ours if span in theirs] == theirs, tags
            for type_, start, end in missed:
                assert end - start == 1
                assert tags[start] == f"E-{type_}"
                assert split_tag(tags[end])[1] == type_

    def test_strict_ioe1_is_right_where_seqeval_is_not(self):
        # Well-formed: E marks an entity whose neighbour is of the same type. seqeval misses it.
        tags = tags_from_spans([Span("X", 0, 1), Span("X", 1, 2)], 2, "IOE1")
        assert tags == ["E-X", "I-X"]
        assert spans(tags, "IOE1", "strict") == [Span("X", 0, 1), Span("X", 1, 2)]
        assert seqeval_strict(tags, "IOE1") == [Span("X", 1, 2)]

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    @given(data=st.data())
    @quick
    def test_strict_spans_are_the_lenient_ones_without_a_malformed_token(self, scheme, data):
        tags = data.draw(tag_lists("BIESLUM"))
        bad = set(malformed(tags, scheme))
        lenient, strict = spans(tags, scheme), spans(tags, scheme, "strict")
        assert strict == [span for span in lenient if not bad & set(range(span.start, span.end))]
        covered = {token for span in lenient for token in range(span.start, span.end)}
        assert bad <= covered

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    def test_a_letter_that_the_scheme_does_not_have_is_malformed(self, scheme):
        for letter in set("BIESLU") - set(LETTERS[scheme]):
            assert malformed([f"{letter}-PER", "O"], scheme) == [0]
            assert spans([f"{letter}-PER", "O"], scheme, "strict") == []

    def test_m_is_another_way_to_write_i(self):
        tags = ["B-PER", "M-PER", "E-PER", "S-LOC"]
        assert spans(tags, "IOBES", "strict") == [Span("PER", 0, 3), Span("LOC", 3, 4)]

    def test_plain_tags_are_never_malformed(self):
        assert malformed(["B-PER", "I-LOC"], "plain") == []


class TestTagsFromSpans:
    @pytest.mark.parametrize(
        ("scheme", "expected"),
        [
            ("IO", "I-X I-X I-X O I-Y"),
            ("IOB1", "I-X B-X I-X O I-Y"),
            ("IOB2", "B-X B-X I-X O B-Y"),
            ("IOE1", "E-X I-X I-X O I-Y"),
            ("IOE2", "E-X I-X E-X O E-Y"),
            ("IOBES", "S-X B-X E-X O S-Y"),
            ("BILOU", "U-X B-X L-X O U-Y"),
        ],
    )
    def test_each_scheme_writes_the_same_spans_its_own_way(self, scheme, expected):
        found = [Span("Y", 4, 5), Span("X", 1, 3), Span("X", 0, 1)]  # in any order
        assert tags_from_spans(found, 5, scheme) == expected.split()

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    @given(sentence=sentences())
    @quick
    def test_spans_survive_being_written_as_tags(self, scheme, sentence):
        found, length = sentence
        tags = tags_from_spans(found, length, scheme)
        expected = merged(found) if scheme == "IO" else found
        assert len(tags) == length
        assert malformed(tags, scheme) == []
        assert spans(tags, scheme, "lenient") == expected
        assert spans(tags, scheme, "strict") == expected

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    def test_well_formed_tags_survive_being_read_as_spans(self, scheme):
        for tags in all_tag_lists(LETTERS[scheme], 4 if len(LETTERS[scheme]) < 4 else 3):
            if not malformed(tags, scheme):
                assert tags_from_spans(spans(tags, scheme), len(tags), scheme) == tags

    @pytest.mark.parametrize(
        ("found", "message"),
        [
            ([Span("X", 0, 2), Span("Y", 1, 3)], "do not overlap"),
            ([Span("X", 1, 2), Span("X", 1, 2)], "do not overlap"),
            ([Span("X", 2, 4)], "inside a sentence of 3 tokens"),
            ([Span("X", -1, 1)], "inside a sentence of 3 tokens"),
            ([Span("X", 1, 1)], "inside a sentence of 3 tokens"),
        ],
    )
    def test_spans_that_tags_cannot_express_are_refused(self, found, message):
        with pytest.raises(LabelError, match=message):
            tags_from_spans(found, 3, "IOB2")

    def test_plain_tags_cannot_hold_spans(self):
        with pytest.raises(LabelError, match="plain tags have no entities"):
            tags_from_spans([], 1, "plain")


class TestDetectScheme:
    @pytest.mark.parametrize(
        ("sequences", "expected"),
        [
            ([], "IOB2"),
            ([["O", "O"], []], "IOB2"),
            ([["0", "o"]], "IOB2"),
            ([["O"], ["O"], ["B-PER", "I-PER"]], "IOB2"),  # the first sentences show nothing
            ([["0", "B-GENE", "I-GENE"]], "IOB2"),
            ([["0", "B-GENE"]], "IOB2"),
            ([["DET", "NOUN", "I"]], "plain"),
            ([["OTHER", "B-PER"]], "plain"),
            ([["I-PER", "I-PER", "O", "I-LOC"]], "IO"),
            ([["I-PER", "B-PER", "O", "I-LOC"]], "IOB1"),
            ([["B-PER", "O", "B-LOC"]], "IOB2"),
            ([["B-PER", "I-PER", "O", "I-LOC"]], "IOB2"),  # one malformed tag, not two
            ([["I-PER", "E-PER", "O", "E-LOC"]], "IOE2"),
            ([["E-PER", "I-PER", "O", "I-LOC"]], "IOE1"),
            ([["B-PER", "E-PER"]], "IOBES"),
            ([["S-PER"]], "IOBES"),
            ([["B", "M", "E", "S"]], "IOBES"),
            ([["U-PER"]], "BILOU"),
            ([["B-PER", "L-PER", "S-LOC"]], "BILOU"),
            ([["PER-B", "PER-I"]], "IOB2"),
        ],
    )
    def test_the_scheme_with_the_fewest_malformed_tags_is_found(self, sequences, expected):
        assert detect_scheme(iter(sequences)) == expected

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    @given(rest=st.lists(sentences(), max_size=4))
    @quick
    def test_spans_written_in_a_scheme_are_detected_as_that_scheme(self, scheme, rest):
        telling = ([Span("PER", 0, 1), Span("PER", 1, 4), Span("LOC", 5, 6)], 6)
        written = [tags_from_spans(found, n, scheme) for found, n in [*rest, telling]]
        assert detect_scheme(written) == scheme

    @pytest.mark.parametrize(
        ("file", "column", "delimiter", "expected", "entities"),
        [
            ("wikigold/wikigold.conll.txt", 1, " ", "IO", 3558),
            ("wnut17/wnut17train.conll", 1, "\t", "IOB2", 1975),
            ("wnut17/emerging.dev.conll", 1, "\t", "IOB2", 836),
            ("wnut17/emerging.test.annotated", 1, "\t", "IOB2", 1079),
            ("uner_zh_gsdsimp/zh_gsdsimp-ud-test.iob2", 2, "\t", "IOB2", 763),
            ("ud_en_ewt/en_ewt-ud-dev.conllu", 3, "\t", "plain", None),
            ("ud_en_ewt/en_ewt-ud-dev.conllu", 4, "\t", "plain", None),
        ],
    )
    def test_real_files_have_their_published_scheme_and_entities(
        self, file, column, delimiter, expected, entities
    ):
        sequences = columns(DATA / file, column, delimiter)
        assert detect_scheme(sequences) == expected
        if entities is not None:
            assert sum(len(spans(tags, expected)) for tags in sequences) == entities
            assert sum(len(spans(tags, expected, "strict")) for tags in sequences) == entities

    @pytest.mark.parametrize("scheme", SPAN_SCHEMES)
    def test_a_real_file_rewritten_in_a_scheme_is_detected_as_that_scheme(self, scheme):
        sequences = columns(DATA / "wnut17" / "emerging.test.annotated", 1, "\t")
        found = [(spans(tags, "IOB2"), len(tags)) for tags in sequences]
        rewritten = [tags_from_spans(entities, length, scheme) for entities, length in found]
        assert detect_scheme(rewritten) == scheme
        if scheme != "IO":
            assert [spans(tags, scheme, "strict") for tags in rewritten] == [
                entities for entities, _ in found
            ]


class TestCompleteLabels:
    @pytest.mark.parametrize(
        ("tags", "scheme", "expected"),
        [
            (["B-PER", "O", "B-LOC"], "IOB2", "O B-LOC I-LOC B-PER I-PER"),
            (["I-PER"], "IOB1", "O B-PER I-PER"),
            (["I-PER"], "IO", "O I-PER"),
            (["E-PER"], "IOE2", "O I-PER E-PER"),
            (["S-PER"], "IOBES", "O B-PER I-PER E-PER S-PER"),
            (["U-PER"], "BILOU", "O B-PER I-PER L-PER U-PER"),
            (["O"], "IOB2", "O"),
            ([], "IOB2", "O"),
            (["VERB", "DET", "VERB", "O"], "plain", "DET O VERB"),
            (["B"], "IOB2", "O B I"),
            # The user's own spelling is kept, and what is added follows it.
            (["B_PER"], "IOB2", "O B_PER I_PER"),
            (["b-per"], "IOB2", "O b-per i-per"),
            (["PER-B"], "IOB2", "O PER-B PER-I"),
            (["B-PER", "M-PER", "E-PER", "S-LOC"], "IOBES",
             "O B-LOC M-LOC E-LOC S-LOC B-PER M-PER E-PER S-PER"),
            (["B-PER", "B_PER"], "IOB2", "O B-PER B_PER I-PER"),
            # Tags outside, or foreign to the scheme, are still tags of the corpus.
            (["OTHER", "0", "B-PER"], "IOB2", "O 0 OTHER B-PER I-PER"),
            (["E-PER", "B-PER"], "IOB2", "O B-PER I-PER E-PER"),
        ],
    )  # fmt: skip
    def test_the_label_list_has_every_tag_that_the_model_may_need(self, tags, scheme, expected):
        assert complete_labels(tags, scheme) == tuple(expected.split())

    @pytest.mark.parametrize("scheme", SCHEMES)
    @given(data=st.data())
    @quick
    def test_labels_hold_every_tag_once_and_do_not_depend_on_order(self, scheme, data: Any):
        tags = data.draw(st.lists(st.sampled_from(
            ["O", "o", "B-PER", "i-PER", "PER-E", "M-LOC", "L_LOC", "NOUN", "U", "-X-", "B-", ""]
        )))  # fmt: skip
        labels = complete_labels(tags, scheme)
        assert set(tags) <= set(labels)
        assert len(set(labels)) == len(labels)
        assert labels == complete_labels(list(reversed(tags)), scheme)
        assert complete_labels(labels, scheme) == labels


@pytest.mark.parametrize(
    ("name", "ours"), [("BIO", "IOB2"), ("bioes", "IOBES"), ("BILUO", "BILOU")]
)
def test_a_schemes_other_name_is_answered_with_the_one_used_here(name, ours):
    with pytest.raises(LabelError, match=f"found '{name}', which is called {ours} here"):
        spans(["O"], name)
