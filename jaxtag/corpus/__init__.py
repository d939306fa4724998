"""Corpus files to sentences and back: CoNLL columns, CoNLL-U and JSON lines.

Reading and writing are inverses: a sentence keeps its raw lines, so what is written is what was
read plus the prediction. Whatever is wrong in a file is a ``CorpusError`` that says file:line.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from jaxtag.config import DataConfig
from jaxtag.corpus.columns import read_conll, read_conllu
from jaxtag.corpus.jsonl import read_jsonl
from jaxtag.corpus.layout import find_format
from jaxtag.corpus.lines import contents, read_lines, read_stream
from jaxtag.corpus.predictions import conll_corpus, conll_source, write, write_predictions
from jaxtag.corpus.records import Corpus, CorpusError, Layout, Sentence, mistake

__all__ = [
    "Corpus",
    "CorpusError",
    "Layout",
    "Sentence",
    "conll_corpus",
    "conll_source",
    "read",
    "read_text_lines",
    "write",
    "write_predictions",
]


def read(
    path: Path | str,
    options: DataConfig = DataConfig(),  # noqa: B008 (frozen)
    *,
    tagged: bool = True,
    like: Layout | None = None,
) -> Corpus:
    """Read a corpus file, gzipped or not, and find out how it is laid out.

    With ``tagged`` every token has a tag, or it is an error. Without, as for prediction, tags are
    None in a sentence that lacks them, and the file may have fewer columns than the options name.
    ``like`` is the layout of the file that this one belongs to: where this one has the same format
    and no fewer columns, its columns are taken rather than guessed anew. The file is read once,
    so that it may be a pipe.
    """
    path = Path(path)
    lines, encoding = read_lines(path, options.encoding)
    bare = contents(lines)
    match find_format(path, bare, options):
        case "jsonl":
            layout, sentences = read_jsonl(path, lines, bare, options, tagged=tagged)
        case "conllu":
            layout, sentences = read_conllu(path, lines, bare, options, tagged=tagged, like=like)
        case "conll":
            layout, sentences = read_conll(path, lines, bare, options, tagged=tagged, like=like)
    if not sentences:
        found = "nothing but blank lines and comments"
        raise mistake(path, None, "a sentence", found, "give a file that has sentences")
    if tagged and not any(sentence.tags for sentence in sentences):
        found = "none in the file"
        cure = "give a tagged file, or another --data.tag-column"
        raise mistake(path, None, "a labelled token", found, cure)
    return Corpus(path, layout, sentences, encoding)


def read_text_lines(
    stream: BinaryIO, encoding: str = "utf-8", name: str = "<stdin>"
) -> tuple[Sentence, ...]:
    r"""Read a stream of bytes to its end: a sentence a line, tokens between spaces and tabs.

    A blank line is a sentence without tokens.

    >>> import io
    >>> stream = io.BytesIO("New\xa0York  is big\n\n".encode())
    >>> [sentence.tokens for sentence in read_text_lines(stream)]
    [('New\xa0York', 'is', 'big'), ()]
    """
    lines = read_stream(stream, encoding, name)
    sentences = []
    for number, (line, text) in enumerate(zip(lines, contents(lines), strict=True), 1):
        tokens = tuple(part for part in text.replace("\t", " ").split(" ") if part)
        sentences.append(Sentence(tokens, None, (line,), (0,), number))
    return tuple(sentences)
