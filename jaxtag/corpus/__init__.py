"""Corpus files to sentences and back: CoNLL columns, CoNLL-U and JSON lines.

Reading and writing are inverses: a sentence keeps its raw lines, so what is written is what was
read plus the prediction. Whatever is wrong in a file is a ``CorpusError`` that says file:line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from jaxtag.config import DataConfig
from jaxtag.corpus.columns import read_conll, read_conllu
from jaxtag.corpus.jsonl import read_jsonl
from jaxtag.corpus.layout import find_format
from jaxtag.corpus.lines import (
    BOM,
    codec_for,
    content,
    contents,
    decode_line,
    read_lines,
)
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
    ``like`` is the layout of the file that this one belongs to: where both have the same format
    and number of columns, its columns are taken rather than guessed anew.
    """
    path = Path(path)
    if like is None:
        return _read(path, options, tagged=tagged)
    corpus = _read(path, options, tagged=False)
    if (corpus.layout.format, corpus.layout.columns) == (like.format, like.columns):
        options = replace(
            options,
            token_column=_column(options.token_column, like.token_column),
            tag_column=_column(options.tag_column, like.tag_column),
        )
    return _read(path, options, tagged=tagged)


def _column(given: str, index: int | None) -> str:
    return given if given != "auto" or index is None else str(index + 1)


def _read(path: Path, options: DataConfig, *, tagged: bool) -> Corpus:
    lines, encoding = read_lines(path, options.encoding)
    bare = contents(lines)
    match find_format(path, bare, options):
        case "jsonl":
            layout, sentences = read_jsonl(path, lines, bare, options, tagged=tagged)
        case "conllu":
            layout, sentences = read_conllu(path, lines, bare, options, tagged=tagged)
        case "conll":
            layout, sentences = read_conll(path, lines, bare, options, tagged=tagged)
    if not sentences:
        found = "nothing but blank lines and comments"
        raise mistake(path, None, "a sentence", found, "give a file that has sentences")
    if tagged and not any(sentence.tags for sentence in sentences):
        found = "none in the file"
        cure = "give a tagged file, or another --data.tag-column"
        raise mistake(path, None, "a labelled token", found, cure)
    return Corpus(path, layout, sentences, encoding)


def read_text_lines(
    stream: Iterable[bytes | str], encoding: str = "utf-8", name: str = "<stdin>"
) -> Iterator[Sentence]:
    r"""Read one sentence a line, its tokens between runs of spaces and tabs, as they come.

    A blank line is a sentence without tokens. Give ``sys.stdin.buffer``: a text stream may take
    other characters for line ends.

    >>> [sentence.tokens for sentence in read_text_lines(["New\xa0York  is big\n", "\n"])]
    [('New\xa0York', 'is', 'big'), ()]
    """
    codec = codec_for(encoding, name)
    for number, raw in enumerate(stream, 1):
        line = raw if isinstance(raw, str) else decode_line(raw, codec, name, number)
        text = content(line).removeprefix(BOM) if number == 1 else content(line)
        tokens = tuple(part for part in text.replace("\t", " ").split(" ") if part)
        yield Sentence(tokens, None, (line,), (0,), number)
