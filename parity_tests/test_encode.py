"""Tokens and tags to ids: what ids mean, and that they never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxtag.config import EncodeConfig
from jaxtag.encode import PARTS, EncodeError, Encoder, build_encoder, encode, shape

quick = settings(max_examples=60, deadline=None)
any_text = st.text(st.characters(codec=None), max_size=40)  # surrogates too


class TestWords:
    def test_words_are_numbered_from_2_and_an_unknown_one_has_id_1(self):
        encoder = Encoder(words=("the", "cat"), labels=(), kind="none")
        assert encode([["cat", "the", "dog"]], None, encoder).ids.tolist() == [3, 2, 1]

    @quick
    @given(st.lists(st.lists(any_text, max_size=6), max_size=6))
    def test_no_token_has_id_0_which_is_padding(self, sentences):
        encoder = build_encoder(sentences, (), EncodeConfig(min_count=1, parts="none"))
        ids = encode(sentences, None, encoder).ids
        assert ((ids >= 2) & (ids < encoder.vocabulary_size)).all()

    @pytest.mark.parametrize(
        ("min_count", "words"), [(1, ("c", "a", "b")), (2, ("c", "a")), (3, ("c",)), (4, ())]
    )
    def test_words_seen_less_often_than_the_minimum_are_unknown(self, min_count, words):
        config = EncodeConfig(min_count=min_count)
        assert build_encoder([["a", "b", "c"], ["c", "a", "c"]], (), config).words == words

    def test_the_most_frequent_words_stay_and_of_equals_the_first_in_the_alphabet(self):
        sentences = [["d", "b", "c", "a"], ["d", "b", "c"], ["d"]]
        config = EncodeConfig(min_count=1, max_words=2)
        assert build_encoder(sentences, (), config).words == ("d", "b")

    def test_a_vocabulary_of_no_words_makes_every_word_unknown(self):
        encoder = build_encoder([["a", "a"]], (), EncodeConfig(max_words=0))
        assert encoder.vocabulary_size == 2
        assert encode([["a"]], None, encoder).ids.tolist() == [1]


class TestSentences:
    def test_sentence_i_is_the_slice_between_offsets_i_and_i_plus_1(self):
        encoder = Encoder(words=("a", "b", "c"), labels=("O", "X"), kind="none")
        encoded = encode([["a", "b"], [], ["c"]], [["O", "X"], [], ["O"]], encoder)
        slices = [slice(*encoded.offsets[i : i + 2]) for i in range(3)]
        assert [encoded.ids[s].tolist() for s in slices] == [[2, 3], [], [4]]
        assert [encoded.labels[s].tolist() for s in slices] == [[0, 1], [], [0]]
        assert encoded.lengths.tolist() == [2, 0, 1]

    @pytest.mark.parametrize("kind", PARTS)
    @pytest.mark.parametrize("sentences", [[], [[]], [[], []]])
    def test_sentences_without_tokens_are_empty_buffers(self, kind, sentences):
        encoded = encode(sentences, None, Encoder((), ("O",), kind))
        assert encoded.offsets.tolist() == [0] * (len(sentences) + 1)
        assert encoded.ids.shape == encoded.labels.shape == (0,)
        assert encoded.parts.shape == (0, PARTS[kind])


class TestLabels:
    def test_a_tag_that_the_label_list_lacks_is_ignored(self):
        encoder = Encoder((), ("O", "B-PER"), "none")
        encoded = encode([["a", "b", "c"]], [["B-PER", "B-LOC", "O"]], encoder)
        assert encoded.labels.tolist() == [1, -100, 0]

    def test_a_sentence_without_tags_is_ignored_beside_one_with_tags(self):
        encoder = Encoder((), ("O",), "none")
        encoded = encode([["a", "b"], ["c"]], [None, ["O"]], encoder)
        assert encoded.labels.tolist() == [-100, -100, 0]

    def test_tokens_alone_are_ignored(self):
        assert encode([["a"]], None, Encoder((), ("O",), "none")).labels.tolist() == [-100]

    def test_another_number_of_tags_than_tokens_is_an_error_naming_the_sentence(self):
        with pytest.raises(EncodeError, match="sentence 2 has 2 tokens but 1 tags"):
            encode([["a"], ["b", "c"]], [["O"], ["O"]], Encoder((), ("O",), "none"))


class TestParts:
    def test_affixes_are_the_word_its_shape_and_its_ends_of_1_to_4_letters(self):
        known = ("=ada", "~Xxx", "A-", "-a", "Ad-", "-da", "Ada-", "-ada")
        encoder = Encoder((), (), "affixes", parts=known)
        assert encode([["Ada"]], None, encoder).parts.tolist() == [[1, 2, 3, 4, 5, 6, 7, 8, 0, 0]]

    def test_case_changes_the_shape_and_the_prefixes_but_not_the_suffixes(self):
        encoder = build_encoder([["ada", "Ada"]], (), EncodeConfig(min_count=1))
        lower, upper = encode([["ada", "Ada"]], None, encoder).parts
        word, form, prefixes, suffixes = 0, 1, slice(2, 8, 2), slice(3, None, 2)
        assert lower[word] == upper[word]
        assert lower[suffixes].tolist() == upper[suffixes].tolist()
        assert lower[form] != upper[form]
        assert (lower[prefixes] != upper[prefixes]).all()

    def test_characters_stand_in_order_and_nothing_after_them(self):
        encoder = Encoder((), (), "characters", parts=("A", "a", "d"))
        parts = encode([["Ada", "é"]], None, encoder).parts
        assert parts.tolist() == [[1, 3, 2, *[0] * 13], [0] * 16]

    def test_a_long_word_has_the_characters_of_both_its_ends(self):
        words = ["abcdefghstuvwxyz", "abcdefgh-middle-stuvwxyz"]
        encoder = build_encoder([words], (), EncodeConfig(min_count=1, parts="characters"))
        short, long = encode([words], None, encoder).parts
        assert (short > 0).all()
        assert long.tolist() == short.tolist()

    def test_a_part_that_training_did_not_see_is_nothing(self):
        encoder = build_encoder([["abc"]], (), EncodeConfig(min_count=1))
        assert (encode([["XYZ"]], None, encoder).parts == 0).all()

    def test_a_part_counts_once_for_every_token_that_has_it(self):
        config = EncodeConfig(min_count=3, parts="characters")
        assert build_encoder([["ab", "ab", "b"]], (), config).parts == ("b",)

    def test_the_most_frequent_parts_stay_and_of_equals_the_first_in_the_alphabet(self):
        config = EncodeConfig(min_count=1, max_parts=2, parts="characters")
        assert build_encoder([["dbca", "d"]], (), config).parts == ("d", "a")

    def test_nothing_is_seen_inside_a_word_with_none(self):
        encoder = build_encoder([["a", "b"]], (), EncodeConfig(min_count=1, parts="none"))
        assert encoder.parts == ()
        assert encode([["a", "b"]], None, encoder).parts.shape == (2, 0)

    @pytest.mark.parametrize("kind", ["affixes", "characters"])
    @quick
    @given(
        seen=st.lists(any_text, max_size=6),
        words=st.lists(any_text, min_size=1, max_size=6),
        size=st.integers(0, 9),
    )
    def test_every_part_is_nothing_or_known(self, kind, seen, words, size):
        config = EncodeConfig(min_count=1, max_parts=size, parts=kind)
        encoder = build_encoder([seen], (), config)
        found = encode([words], None, encoder).parts
        assert found.dtype == np.int32
        assert len(encoder.parts) <= size
        assert ((found >= 0) & (found <= len(encoder.parts))).all()

    @pytest.mark.parametrize("kind", PARTS)
    def test_a_lone_surrogate_is_a_character_like_others(self, kind):
        config = EncodeConfig(min_count=1, parts=kind)
        encoder = build_encoder([["\ud83d"]], (), config)
        assert encode([["\ud83d", "a\udc80"]], None, encoder).ids.tolist() == [2, 1]

    def test_an_unknown_kind_is_an_error_that_lists_the_known_ones(self):
        with pytest.raises(EncodeError, match="affixes, characters, none, found 'pieces'"):
            encode([["a"]], None, Encoder((), (), "pieces"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [("", ""), ("aaaa", "xx"), ("AaB", "XxX"), ("東京1", "aad"), ("--!", "--!")],
)
def test_a_shape_keeps_two_of_a_run_of_one_class(word, expected):
    assert shape(word) == expected
