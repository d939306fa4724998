"""Token counts, and entity scores by seqeval, over a whole set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from seqeval.metrics import f1_score, precision_score, recall_score
from torch import Tensor

BILOU = {"L-": "E-", "U-": "S-"}


class TokenCounts(NamedTuple):
    """Correct tokens and all tokens that count: sums of batches add, their accuracies do not."""

    correct: int
    total: int


def token_counts(logits: Tensor, labels: Tensor, *, ignore_index: int = -100) -> TokenCounts:
    """Count tokens whose first largest logit is their label's."""
    kept = labels != ignore_index
    correct = (logits.argmax(dim=-1) == labels) & kept
    return TokenCounts(int(correct.sum()), int(kept.sum()))


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Micro precision, recall and F1 of entities, read leniently (seqeval's default).

    seqeval's default reading knows IOBES but not BILOU, whose L and U are its E and S.
    """
    truth, guess = (
        [[BILOU.get(tag[:2], tag[:2]) + tag[2:] for tag in tags] for tags in rows]
        for rows in (gold, predicted)
    )
    return {
        "precision": float(precision_score(truth, guess, zero_division=0)),
        "recall": float(recall_score(truth, guess, zero_division=0)),
        "f1": float(f1_score(truth, guess, zero_division=0)),
    }
