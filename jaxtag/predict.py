"""``python -m jaxtag.predict RUN FILE``: give every token of a file one tag."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxtag import config


@dataclass(frozen=True)
class PredictConfig:
    """Tag a file, in its own format: a new last column, Pred= in MISC, or pred_tags."""

    run: Path
    """Run directory."""
    file: Path
    """Corpus with or without tags; - reads sentences, one a line, from standard input."""
    data: config.ReadConfig = field(default_factory=config.ReadConfig)
    output: Path | None = None
    """File to write; by default standard output."""


def main(argv: Sequence[str]) -> None:
    """Read the run and the file, write the file with its predictions."""
    settings = config.parse(PredictConfig, argv, prog="jaxtag.predict")
    from jaxtag import corpus, tagger

    if settings.output is not None and settings.output.resolve() == settings.file.resolve():
        raise config.ConfigError(
            f"--output: expected another file than the input, found {settings.output}; name another"
        )
    trained = tagger.load(settings.run)
    if str(settings.file) == "-":
        if sys.stdin is None:
            raise config.ConfigError("-: expected sentences on standard input, found it closed")
        encoding = settings.data.over(trained.config.data).encoding
        lines = corpus.read_text_lines(sys.stdin.buffer, encoding)
        tokens = [sentence.tokens for sentence in lines]
        tagged = zip(tokens, trained.tag(tokens), strict=True)
        corpus.write(corpus.conll_corpus(tagged, encoding), settings.output)
        return
    read = trained.read(settings.file, settings.data, tagged=False)
    print(f"{settings.file}: {read.layout.describe()}", file=sys.stderr)
    predicted = trained.tag([sentence.tokens for sentence in read.sentences])
    corpus.write_predictions(read, predicted, settings.output)


if __name__ == "__main__":
    config.run_command(main)
