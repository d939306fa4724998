"""Token counts on the device, entity spans and F1 on the host.

Every entity score names the scheme and the mode that it was read with: the same predictions can
score four times as high in one as in the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from jaxtag.config import InputError
from jaxtag.labels import spans
from jaxtag.losses import int32_labels


class MetricsError(InputError):
    """Gold and predicted tags that do not belong to the same tokens."""


class TokenCounts(NamedTuple):
    """Tokens whose best class is their label, and all tokens that count; both int32, both add."""

    correct: Int[Array, ""]
    total: Int[Array, ""]

    def __add__(self, other: TokenCounts) -> TokenCounts:  # type: ignore[override]
        """Counts of two parts as those of both."""
        return TokenCounts(self.correct + other.correct, self.total + other.total)

    def accuracy(self) -> Float[Array, ""]:
        """One ratio over all that was counted; 0 where nothing was."""
        return self.correct / jnp.maximum(self.total, 1)


def token_counts(
    logits_BLC: Float[Array | np.ndarray, "B L C"],
    labels_BL: Integer[Array | np.ndarray, "B L"],
    *,
    ignore_index: int = -100,
) -> TokenCounts:
    """Count the tokens whose largest logit is their label's; of equal logits the first wins.

    >>> logits_BLC = jnp.array([[[2.0, 1.0], [0.0, 1.0], [3.0, 3.0]]])
    >>> counts = token_counts(logits_BLC, jnp.array([[0, 0, -100]]))
    >>> int(counts.correct), int(counts.total)
    (1, 2)
    """
    if jnp.ndim(logits_BLC) != 3 or jnp.shape(logits_BLC)[:2] != jnp.shape(labels_BL):
        raise ValueError(
            f"expected logits (B, L, C) and labels (B, L), "
            f"found {jnp.shape(logits_BLC)} and {jnp.shape(labels_BL)}"
        )
    labels_BL = int32_labels(labels_BL)
    keep_BL = labels_BL != ignore_index
    right_BL = jnp.argmax(logits_BLC, axis=-1) == labels_BL
    return TokenCounts(
        jnp.sum(keep_BL & right_BL, dtype=jnp.int32), jnp.sum(keep_BL, dtype=jnp.int32)
    )


class Scores(NamedTuple):
    """Precision, recall and F1 with the counts they come from; 0.0 where undefined, never NaN."""

    precision: float
    recall: float
    f1: float
    correct: int
    predicted: int
    gold: int

    @classmethod
    def from_counts(cls, correct: int, predicted: int, gold: int) -> Scores:
        """Counts of entities (or tags) to scores; a ratio whose divisor is 0 is 0.0.

        >>> Scores.from_counts(correct=2, predicted=4, gold=4).f1
        0.5
        """
        return cls(
            precision=correct / predicted if predicted else 0.0,
            recall=correct / gold if gold else 0.0,
            f1=2 * correct / (predicted + gold) if predicted + gold else 0.0,
            correct=correct,
            predicted=predicted,
            gold=gold,
        )

    @classmethod
    def mean(cls, scores: Iterable[Scores]) -> Scores:
        """Unweighted mean of each ratio, and the sum of each count; of nothing, zeros.

        The mean F1 is the mean of the F1s, not the F1 of the mean precision and recall
        (scikit-learn's and seqeval's macro average).
        """
        rows = list(scores)
        divisor = len(rows) or 1
        return cls(
            precision=sum(row.precision for row in rows) / divisor,
            recall=sum(row.recall for row in rows) / divisor,
            f1=sum(row.f1 for row in rows) / divisor,
            correct=sum(row.correct for row in rows),
            predicted=sum(row.predicted for row in rows),
            gold=sum(row.gold for row in rows),
        )


@dataclass(frozen=True)
class EntityScores:
    """Entity scores over a corpus, and the scheme and mode that they were read with."""

    scheme: str
    mode: str
    micro: Scores
    macro: Scores
    per_type: dict[str, Scores]

    def to_json(self) -> dict[str, Any]:
        """The scores as plain dictionaries: micro, macro and per_type."""
        return {
            "micro": self.micro._asdict(),
            "macro": self.macro._asdict(),
            "per_type": {name: scores._asdict() for name, scores in self.per_type.items()},
        }


@dataclass(frozen=True)
class TagScores:
    """Accuracy over the tokens of a corpus, and the scores of each tag."""

    accuracy: float
    correct: int
    total: int
    macro: Scores
    per_tag: dict[str, Scores]

    def to_json(self) -> dict[str, Any]:
        """The scores as plain dictionaries: accuracy, correct, total, macro and per_tag."""
        return {
            "accuracy": self.accuracy,
            "correct": self.correct,
            "total": self.total,
            "macro": self.macro._asdict(),
            "per_tag": {name: scores._asdict() for name, scores in self.per_tag.items()},
        }


def entity_scores(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    *,
    scheme: str,
    mode: str = "lenient",
) -> EntityScores:
    """Gold and predicted tags, one sequence a sentence, to precision, recall and F1 of entities.

    An entity is correct if its type and both its bounds are (conlleval.pl); none crosses from one
    sentence to the next. Both sides are read in the same scheme and mode, see ``labels.spans``.
    Micro scores count all entities alike; macro scores are the mean over the types found on either
    side. Without any entity all scores are 0.0. Raises ``MetricsError`` where numbers of
    sentences or of tokens differ, and ``LabelError`` for plain tags: ``tag_scores`` is for those.

    >>> scores = entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]], scheme="IOB2")
    >>> scores.micro
    Scores(precision=1.0, recall=0.5, f1=0.6666666666666666, correct=1, predicted=1, gold=2)
    """
    _check_lengths(gold, predicted)
    spans([], scheme, mode)  # names a wrong scheme or mode even where there is no sentence
    correct: Counter[str] = Counter()
    found: Counter[str] = Counter()
    wanted: Counter[str] = Counter()
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_spans = set(spans(gold_tags, scheme, mode))
        predicted_spans = set(spans(predicted_tags, scheme, mode))
        correct.update(span.type for span in gold_spans & predicted_spans)
        found.update(span.type for span in predicted_spans)
        wanted.update(span.type for span in gold_spans)
    per_type = _per_name(correct, found, wanted)
    micro = Scores.from_counts(correct.total(), found.total(), wanted.total())
    return EntityScores(scheme, mode, micro, Scores.mean(per_type.values()), per_type)


def tag_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> TagScores:
    """Gold and predicted plain tags, one sequence a sentence, to accuracy and scores of each tag.

    Accuracy is one ratio over all tokens, not a mean over sentences; without tokens it is 0.0.
    The macro scores are the mean over the tags found on either side. Raises ``MetricsError`` where
    numbers of sentences or of tokens differ.

    >>> tag_scores([["DET", "NOUN"], ["VERB"]], [["DET", "VERB"], ["VERB"]]).accuracy
    0.6666666666666666
    """
    _check_lengths(gold, predicted)
    wanted = Counter(tag for tags in gold for tag in tags)
    found = Counter(tag for tags in predicted for tag in tags)
    correct = Counter(
        tag
        for gold_tags, predicted_tags in zip(gold, predicted, strict=True)
        for tag, guess in zip(gold_tags, predicted_tags, strict=True)
        if tag == guess
    )
    per_tag = _per_name(correct, found, wanted)
    right, total = correct.total(), wanted.total()
    accuracy = right / total if total else 0.0
    return TagScores(accuracy, right, total, Scores.mean(per_tag.values()), per_tag)


def _per_name(
    correct: Counter[str], found: Counter[str], wanted: Counter[str]
) -> dict[str, Scores]:
    return {
        name: Scores.from_counts(correct[name], found[name], wanted[name])
        for name in sorted(found.keys() | wanted.keys())
    }


def _check_lengths(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    if len(gold) != len(predicted):
        raise MetricsError(
            f"expected as many predicted as gold sentences; found {len(predicted)} predicted and "
            f"{len(gold)} gold: give every sentence its tags, in the same order"
        )
    for number, (gold_tags, predicted_tags) in enumerate(zip(gold, predicted, strict=True), 1):
        if isinstance(gold_tags, str) or isinstance(predicted_tags, str):
            raise MetricsError(
                f"sentence {number}: expected a sequence of tags; found a string: "
                "give a list of tags for every sentence"
            )
        if len(gold_tags) != len(predicted_tags):
            raise MetricsError(
                f"sentence {number}: expected one predicted tag for every gold tag; found "
                f"{len(predicted_tags)} predicted and {len(gold_tags)} gold"
            )
