"""``python -m jaxtag.evaluate RUN FILE``: score a trained run on a tagged corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtag import config


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a trained run on a tagged corpus, lenient and strict side by side."""

    run: Path
    """Run directory."""
    file: Path
    """Tagged corpus, read as the training corpus was."""
    output: Path | None = None
    """Also write the scores to this JSON file."""


def main(argv: Sequence[str]) -> None:
    """Read the run and the corpus, print the table of scores."""
    settings = config.parse(EvaluateConfig, argv, prog="jaxtag.evaluate")
    from rich.console import Console

    from jaxtag import checkpoint, tagger

    trained = tagger.load(settings.run)
    read = trained.read(settings.file, tagged=True)
    gold = [sentence.tags or () for sentence in read.sentences]
    scores, _ = trained.score([sentence.tokens for sentence in read.sentences], gold)
    Console().print(scores.table(str(settings.file)))
    if settings.output is not None:
        checkpoint.write_json(settings.output, scores.to_json())


if __name__ == "__main__":
    config.run_command(main)
