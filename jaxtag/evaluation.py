"""Predicted and gold tags in; one ``Evaluation`` with its JSON and its table out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxtag.batch import Batch, make_batch, scatter_back
from jaxtag.device import Devices, prefetch
from jaxtag.encode import IGNORE, Encoded
from jaxtag.metrics import EntityScores, Scores, TagScores, entity_scores, tag_scores
from jaxtag.model import Params
from jaxtag.plan import EpochPlan, Placement

T = TypeVar("T")


@dataclass(frozen=True)
class Evaluation:
    """Scores of one corpus, each over the whole set."""

    loss: float
    """Cross-entropy per token, over the tokens whose tag the model knows."""
    accuracy: float
    """Correct tags / tokens."""
    tokens: int
    lenient: EntityScores | None
    """Entities read as conlleval does; None for plain tags."""
    strict: EntityScores | None
    """Entities whose tags are well-formed in the scheme; None for plain tags."""
    tags: TagScores | None
    """Scores of each tag, for plain tags."""

    @property
    def score(self) -> float:
        """What models are chosen by: lenient micro F1, or accuracy for plain tags."""
        return self.accuracy if self.lenient is None else self.lenient.micro.f1

    def summary(self) -> str:
        """Loss, accuracy and, where there are entities, both F1s, as one short text."""
        text = f"loss {self.loss:.4f}, accuracy {self.accuracy:.4f}"
        for scores in (self.lenient, self.strict):
            if scores is not None:
                text += f", {scores.mode} F1 {scores.micro.f1:.4f}"
        return text

    def to_json(self) -> dict[str, Any]:
        """The form that ``result.json`` has."""
        result: dict[str, Any] = {
            "accuracy": self.accuracy,
            "loss": self.loss,
            "tokens": self.tokens,
        }
        if self.lenient is not None and self.strict is not None:
            result["scheme"] = self.lenient.scheme
            result["lenient"] = self.lenient.to_json()
            result["strict"] = self.strict.to_json()
        if self.tags is not None:
            scores = self.tags.to_json()
            result |= {"macro": scores["macro"], "per_tag": scores["per_tag"]}
        return result

    def show(self, title: str) -> None:
        """Print the scores to standard output: types (or tags) by precision, recall and F1."""
        # Without a terminal nothing limits the width, and nothing is cut.
        on_terminal = sys.stdout is not None and sys.stdout.isatty()
        console = Console() if on_terminal else Console(width=200)
        console.print(Text(f"{title}: {self.tokens:,} tokens, {self.summary()}"), soft_wrap=True)
        console.print(self._table())

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("tag" if self.lenient is None else "entity\ntype", overflow="fold")
        modes: list[tuple[str, dict[str, Scores], Scores, Scores | None]] = []
        if self.tags is not None:
            modes.append(("", self.tags.per_tag, self.tags.macro, None))
        for scores in (self.lenient, self.strict):
            if scores is not None:
                modes.append((f"{scores.mode}\n", scores.per_type, scores.macro, scores.micro))
        for mode, *_ in modes:
            for name in ("P", "R", "F1"):
                table.add_column(f"{mode}{name}", justify="right")
        table.add_column("\ngold" if self.lenient is not None else "gold", justify="right")
        names = sorted({name for _, per_name, *_ in modes for name in per_name})
        nothing = Scores.from_counts(0, 0, 0)
        for name in names:
            rows = [per_name.get(name, nothing) for _, per_name, *_ in modes]
            table.add_row(Text(name or "(no type)"), *_cells(rows))
        table.add_section()
        if self.lenient is not None:
            table.add_row("micro", *_cells([micro for *_, micro in modes if micro is not None]))
        table.add_row("macro", *_cells([macro for _, _, macro, _ in modes]))
        return table


def _cells(rows: Sequence[Scores]) -> list[str]:
    ratios = [f"{value:.3f}" for row in rows for value in (row.precision, row.recall, row.f1)]
    return [*ratios, f"{rows[0].gold:,}"]


def run_program(
    program: Callable[[Params, Batch], T],
    params: Params,
    encoded: Encoded,
    plan: EpochPlan,
    devices: Devices,
) -> list[tuple[Placement, T]]:
    """Run a program over a plan; its outputs stay on the devices, with where they belong."""
    placed = prefetch(
        plan.batches, lambda placement: (placement, devices.shard(make_batch(encoded, placement)))
    )
    return [(placement, program(params, batch)) for placement, batch in placed]


def tags_of(
    outputs: Sequence[tuple[Placement, Array]], encoded: Encoded, labels: Sequence[str]
) -> list[list[str]]:
    """Labels of cells to the tags of every sentence, in the order of the corpus."""
    found = scatter_back(
        [(placement, np.asarray(labels_BL)) for placement, labels_BL in outputs], encoded.offsets
    )
    return [[labels[label] for label in row] for row in found]


def evaluate(
    program: Callable[..., Any],
    params: Params,
    encoded: Encoded,
    gold: Sequence[Sequence[str]],
    plan: EpochPlan,
    *,
    labels: Sequence[str],
    scheme: str,
    devices: Devices,
) -> tuple[Evaluation, list[list[str]]]:
    """Run the evaluation program over a plan; scores, and the predicted tags of every sentence.

    ``program`` is ``step.eval_program``'s. Sums and labels stay on the device until all batches
    are under way; logits never leave it. A gold tag that the model does not know has no loss, and
    is a token (and an entity) missed.
    """
    outputs = run_program(program, params, encoded, plan, devices)
    sums = jax.device_get([batch_sums for _, (batch_sums, _) in outputs])
    predicted = tags_of([(place, tags) for place, (_, tags) in outputs], encoded, labels)
    total = float(sum(np.float64(batch.loss.total) for batch in sums))
    correct = sum(int(batch.tokens.correct) for batch in sums)
    known = int((encoded.labels != IGNORE).sum())
    tokens = int(encoded.offsets[-1])
    plain = scheme == "plain"
    evaluation = Evaluation(
        loss=total / known if known else 0.0,
        accuracy=correct / tokens if tokens else 0.0,
        tokens=tokens,
        lenient=None if plain else entity_scores(gold, predicted, scheme=scheme, mode="lenient"),
        strict=None if plain else entity_scores(gold, predicted, scheme=scheme, mode="strict"),
        tags=tag_scores(gold, predicted) if plain else None,
    )
    return evaluation, predicted
