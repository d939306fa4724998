"""The made-up corpus: what every split promises, and that it cannot change unnoticed."""

from __future__ import annotations

import collections
import hashlib
import itertools
import os
import subprocess
import sys

import pytest

from jaxtag import demo

SPLITS = ("train", "dev", "test")
TAGS = {"O"} | {f"{prefix}-{kind}" for prefix in "BI" for kind in ("PER", "ORG", "LOC", "MISC")}


def entities(tags):
    """IOB2 tags in, a set of (start, end, type) out."""
    starts = [i for i, tag in enumerate(tags) if tag[0] == "B"]
    ends = [
        next((j for j in range(i + 1, len(tags)) if tags[j][0] != "I"), len(tags)) for i in starts
    ]
    return {(i, j, tags[i][2:]) for i, j in zip(starts, ends, strict=True)}


def surfaces(corpus):
    return [
        " ".join(tokens[start:end])
        for tokens, tags in corpus
        for start, end, _ in sorted(entities(tags))
    ]


def tag_counts(corpus):
    counts = collections.defaultdict(collections.Counter)
    for tokens, tags in corpus:
        for token, tag in zip(tokens, tags, strict=True):
            counts[token][tag] += 1
    return counts


@pytest.mark.parametrize("split", SPLITS)
def test_the_same_seed_gives_the_same_corpus(split):
    assert demo.sentences(split, seed=3, count=50) == demo.sentences(split, seed=3, count=50)


def test_the_corpus_does_not_depend_on_the_hash_seed():
    code = "from jaxtag import demo; print(demo.sentences('dev', count=20))"
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


@pytest.mark.parametrize("split", SPLITS)
def test_another_seed_gives_another_corpus(split):
    assert demo.sentences(split, seed=0, count=50) != demo.sentences(split, seed=1, count=50)


def test_default_sizes():
    assert [len(demo.sentences(split)) for split in SPLITS] == [2000, 300, 300]


def test_fewer_sentences_are_the_first_of_more():
    assert demo.sentences("train", count=20) == demo.sentences("train", count=60)[:20]
    assert demo.sentences("train", count=0) == []


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_has_exactly_the_nine_tags(split):
    assert {tag for _, tags in demo.sentences(split) for tag in tags} == TAGS


@pytest.mark.parametrize("split", SPLITS)
def test_tags_are_valid_iob2(split):
    for tokens, tags in demo.sentences(split):
        assert len(tokens) == len(tags)
        for before, tag in itertools.pairwise(("O", *tags)):
            assert tag[0] != "I" or before[2:] == tag[2:], (tokens, tags)


@pytest.mark.parametrize("split", SPLITS)
def test_tokens_fit_a_column_of_a_corpus_file(split):
    for tokens, _ in demo.sentences(split):
        for token in tokens:
            assert token
            assert token.isprintable()
            assert not any(letter.isspace() or letter in "{}|*" for letter in token)


def test_lengths_are_between_3_and_80_with_a_long_tail():
    lengths = [len(tokens) for seed in (0, 1) for tokens, _ in demo.sentences("train", seed=seed)]
    assert min(lengths) == 3
    assert 60 < max(lengths) <= 80
    assert sum(length > 60 for length in lengths) >= 20
    assert 12 < sum(lengths) / len(lengths) < 18


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_share_of_the_names_is_not_in_train(split, seed):
    seen = set(surfaces(demo.sentences("train", seed=seed)))
    names = surfaces(demo.sentences(split, seed=seed))
    distinct = set(names)
    assert 0.2 < sum(name not in seen for name in names) / len(names) < 0.6
    assert 0.2 < len(distinct - seen) / len(distinct) < 0.6


def test_many_words_bear_different_tags():
    counts = tag_counts(demo.sentences("train"))
    assert sum(len(tags) > 1 for tags in counts.values()) >= 200
    for word in ("May", "Rose", "Apple", "Shell", "Reading", "March"):
        assert "O" in counts[word], word
        assert len(counts[word]) > 1, word
    for word in ("Washington", "Paris", "Jordan"):
        assert {"B-PER", "B-LOC"} <= set(counts[word]), word


def test_the_most_frequent_tag_of_a_word_is_a_poor_tagger():
    counts = tag_counts(demo.sentences("train"))
    shared = gold_total = predicted_total = 0
    for tokens, tags in demo.sentences("dev"):
        best = [counts[token].most_common(1)[0][0] if token in counts else "O" for token in tokens]
        gold, predicted = entities(tags), entities(best)
        shared += len(gold & predicted)
        gold_total += len(gold)
        predicted_total += len(predicted)
    assert 0.3 < 2 * shared / (gold_total + predicted_total) < 0.7


def test_no_sentence_stands_in_two_splits():
    texts = {
        split: {tokens for seed in (0, 1) for tokens, _ in demo.sentences(split, seed=seed)}
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not texts[one] & texts[other]


def test_an_unknown_split_names_the_known_ones():
    with pytest.raises(ValueError, match=r"train, dev, test.*'valid'"):
        demo.sentences("valid")


def test_a_negative_count_is_an_error():
    with pytest.raises(ValueError, match="-1"):
        demo.sentences("train", count=-1)


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        ("train", "c00822d6313d83c9ea9606b2705c6b54c84d4caf269dbbd7e9410c7dbcd253bc"),
        ("dev", "c63b187c0c27e37f266fc5bd9edebcc762dd707b5260ed465fc4f1d8031387bf"),
        ("test", "fa3498fc9acfd0c7943fe5bb661033ff6c6cefc22205df9ffe440968ed013f36"),
    ],
)
def test_the_corpus_of_seed_0_is_pinned(split, digest):
    text = "\n\n".join(
        "\n".join(f"{token}\t{tag}" for token, tag in zip(tokens, tags, strict=True))
        for tokens, tags in demo.sentences(split)
    )
    assert hashlib.sha256(text.encode()).hexdigest() == digest
