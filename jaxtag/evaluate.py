"""``python -m jaxtag.evaluate RUN FILE``: score a trained run on a tagged corpus."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxtag import config


@dataclass(frozen=True)
class EvaluateConfig:
    """Score a trained run on a tagged corpus, lenient and strict side by side."""

    run: Path
    """Run directory."""
    file: Path
    """Tagged corpus, read as the training corpus was."""
    data: config.ReadConfig = field(default_factory=config.ReadConfig)
    output: Path | None = None
    """Also write the scores to this JSON file."""


def main(argv: Sequence[str]) -> None:
    """Read the run and the corpus, print the table of scores."""
    settings = config.parse(EvaluateConfig, argv, prog="jaxtag.evaluate")
    from jaxtag import checkpoint, data, tagger

    trained = tagger.load(settings.run)
    read = trained.read(settings.file, settings.data, tagged=True)
    print(f"{settings.file}: {read.layout.describe()}", file=sys.stderr)
    gold = [sentence.tags or () for sentence in read.sentences]
    missing = data.unseen(gold, trained.encoder.labels)
    if missing:
        print(f"warning: {data.unseen_warning(str(settings.file), missing)}", file=sys.stderr)
    scores, _ = trained.score([sentence.tokens for sentence in read.sentences], gold)
    if settings.output is not None:
        checkpoint.write_json(settings.output, scores.to_json())
    scores.show(str(settings.file))


if __name__ == "__main__":
    config.run_command(main)
