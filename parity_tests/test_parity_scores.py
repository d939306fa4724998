"""Entity scores of generated corpora against seqeval's, in every scheme and reading."""

from __future__ import annotations

import random

import pytest
from seqeval import scheme as seqeval_scheme
from seqeval.metrics import f1_score, precision_score, recall_score
from test_labels import LETTERS, SPAN_SCHEMES, seqeval_strict
from test_metrics import SEQEVAL_DIFFERS, TABLE, sentences, seqeval_entities

import torch_ref.metrics
from jaxtag.labels import malformed, spans, tags_from_spans
from jaxtag.metrics import entity_scores

pytestmark = pytest.mark.parity

CORPORA = 1000
PLAIN_RUN = 100
TYPES = ("PER", "LOC", "creative-work")
STRICT = [scheme for scheme in SPAN_SCHEMES if scheme != "IO"]  # which seqeval does not know
SCORES = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
# seqeval reads E and S in its lenient mode, and not the L and U of BILOU.
AS_SEQEVAL_READS = str.maketrans("LU", "ES")


def tags_of(rng, scheme):
    """Tags of one sentence: half of the time any at all, else well-formed ones."""
    tags = ["O", *(f"{letter}-{type_}" for letter in LETTERS[scheme] for type_ in TYPES)]
    any_ = [rng.choice(tags) for _ in range(rng.randrange(9))]
    if rng.random() < 0.5:
        return any_
    return tags_from_spans(spans(any_, scheme), len(any_), scheme)


def predicted_of(rng, gold, scheme):
    """Gold tags of which some are read as others."""
    other = tags_of(rng, scheme)
    other += ["O"] * (len(gold) - len(other))
    return [b if rng.random() < 0.3 else a for a, b in zip(gold, other[: len(gold)], strict=True)]


def is_read_right(tags, scheme):
    """Whether seqeval's strict mode finds the entities that the scheme's definition names.

    In IOB1 it starts an entity inside a chunk that its B makes malformed, and in IOE1 it misses
    some of a single token; test_labels.py holds that there is nothing else.
    """
    match scheme:
        case "IOB1":
            return all(not tags[place].startswith("B") for place in malformed(tags, scheme))
        case "IOE1":
            ours = spans(tags, scheme, "strict")
            return all(end - start > 1 or not tags[start].startswith("E") for _, start, end in ours)
        case _:
            return True


def corpus_of(seed, scheme, mode):
    """Gold and predicted tags of up to six sentences, without those that seqeval reads wrongly."""
    rng = random.Random(f"{seed} {scheme} {mode}")
    gold, predicted = [], []
    for _ in range(rng.randrange(1, 7)):
        tags = tags_of(rng, scheme)
        guess = predicted_of(rng, tags, scheme)
        if mode == "lenient" or (is_read_right(tags, scheme) and is_read_right(guess, scheme)):
            gold.append(tags)
            predicted.append(guess)
    return gold, predicted


def seqeval_scores(gold, predicted, scheme, mode):
    """Micro and macro precision, recall and F1, and each type's."""
    options = {"zero_division": 0}
    if mode == "strict":
        options |= {"mode": "strict", "scheme": getattr(seqeval_scheme, scheme)}
    return {
        (average, name): score(gold, predicted, average=average, **options)
        for average in ("micro", "macro", None)
        for name, score in SCORES.items()
    }


def differences(gold, predicted, scheme, mode):
    """How many of all scores are not seqeval's."""
    ours = entity_scores(gold, predicted, scheme=scheme, mode=mode)
    as_written = gold, predicted
    if mode == "lenient":
        gold, predicted = (
            [[tag[:1].translate(AS_SEQEVAL_READS) + tag[1:] for tag in tags] for tags in corpus]
            for corpus in (gold, predicted)
        )
    reading = "lenient" if mode == "lenient" else scheme
    if not any(seqeval_entities(tags, reading) for tags in (gold, predicted)):
        return len(ours.per_type)  # of no entity at all, seqeval's macro mean is NaN
    theirs = seqeval_scores(gold, predicted, scheme, mode)
    found = 0
    for name in SCORES:
        found += differs(getattr(ours.micro, name), theirs["micro", name])
        found += differs(getattr(ours.macro, name), theirs["macro", name])
        each = [getattr(scores, name) for scores in ours.per_type.values()]
        found += len(each) != len(theirs[None, name])
        found += sum(map(differs, each, theirs[None, name]))
    if mode == "lenient":
        reference = torch_ref.metrics.entity_scores(*as_written)
        found += sum(differs(getattr(ours.micro, name), reference[name]) for name in SCORES)
    return found


def differs(one, other):
    # Both are quotients of the same counts, in another order of operations.
    return bool(abs(one - other) > 1e-12)


def agree(parity, scheme, mode, seeds):
    found = sum(differences(*corpus_of(seed, scheme, mode), scheme, mode) for seed in seeds)
    parity.check("15", found, case=f"{scheme}, {mode}", cases=len(seeds))


READINGS = [("lenient", scheme) for scheme in SPAN_SCHEMES] + [("strict", s) for s in STRICT]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize(("mode", "scheme"), READINGS)
def test_scores_of_generated_corpora_are_seqevals(parity, mode, scheme):
    agree(parity, scheme, mode, range(PLAIN_RUN))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
@pytest.mark.parametrize(("mode", "scheme"), READINGS)
def test_scores_of_a_thousand_generated_corpora_are_seqevals(parity, mode, scheme):
    agree(parity, scheme, mode, range(PLAIN_RUN, CORPORA))


@pytest.mark.parametrize("scheme", ["IOB1", "IOE1"])
def test_the_sentences_left_out_are_few_and_all_others_have_seqevals_entities(scheme):
    rng = random.Random(0)
    tags = [tags_of(rng, scheme) for _ in range(500)]
    kept = [sentence for sentence in tags if is_read_right(sentence, scheme)]
    assert len(kept) > len(tags) / 2
    for sentence in kept:
        assert spans(sentence, scheme, "strict") == seqeval_strict(sentence, scheme)


@pytest.mark.filterwarnings("ignore:.*seems not to be NE tag")
def test_tricky_tags_have_seqevals_counts_where_it_is_right(parity):
    found, cases = 0, 0
    for name, gold, predicted, reading, *_ in TABLE:
        if (int(name.split()[0]), reading) in SEQEVAL_DIFFERS:
            continue
        scheme, mode = ("IOB2", "lenient") if reading == "lenient" else (reading, "strict")
        gold, predicted = sentences(gold), sentences(predicted)
        wanted, guessed = (set(seqeval_entities(tags, reading)) for tags in (gold, predicted))
        counts = entity_scores(gold, predicted, scheme=scheme, mode=mode).micro[3:]
        found += counts != (len(wanted & guessed), len(guessed), len(wanted))
        cases += 1
    parity.check("15", found, case="the table of tricky tags", cases=cases)
