"""``python -m jaxtag.predict RUN FILE``: give every token of a file one tag."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtag import config


@dataclass(frozen=True)
class PredictConfig:
    """Tag a file, in its own format: a new last column, Pred= in MISC, or pred_tags."""

    run: Path
    """Run directory."""
    file: Path
    """Corpus with or without tags; - reads sentences, one a line, from standard input."""
    output: Path | None = None
    """File to write; by default standard output."""


def main(argv: Sequence[str]) -> None:
    """Read the run and the file, write the file with its predictions."""
    settings = config.parse(PredictConfig, argv, prog="jaxtag.predict")
    from jaxtag import corpus, tagger

    trained = tagger.load(settings.run)
    if str(settings.file) == "-":
        lines = list(corpus.read_text_lines(sys.stdin.buffer, trained.config.data.encoding))
        tokens = [sentence.tokens for sentence in lines]
        read = corpus.conll_corpus(zip(tokens, trained.tag(tokens), strict=True))
        corpus.write(read, settings.output)
        return
    read = trained.read(settings.file, tagged=False)
    predicted = trained.tag([sentence.tokens for sentence in read.sentences])
    corpus.write_predictions(read, predicted, settings.output)


if __name__ == "__main__":
    config.run_command(main)
