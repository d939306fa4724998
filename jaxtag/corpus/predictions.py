"""A corpus and predicted tags in, the same file with one more column out."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from jaxtag import files
from jaxtag.corpus.jsonl import with_predictions
from jaxtag.corpus.lines import codec_for, content
from jaxtag.corpus.records import Corpus, Layout, Sentence, mistake, quote, several

MISC_KEY = "Pred="


def write_predictions(
    corpus: Corpus, predicted: Sequence[Sequence[str]], path: Path | str | None
) -> None:
    """Write the corpus in its own format with the predicted tags beside its own.

    CoNLL gets a new last column, CoNLL-U ``Pred=TAG`` in MISC, JSON lines a ``pred_tags`` list;
    all else is byte for byte what was read. ``path`` None or ``-`` is standard output; a name in
    .gz is compressed. The file is there whole or not at all.
    """
    _check_counts(corpus, predicted)
    _check_tags(corpus, {tag for tags in predicted for tag in tags})
    text = "".join(
        line
        for sentence, tags in zip(corpus.sentences, predicted, strict=True)
        for line in predicted_source(corpus, sentence, tags)
    )
    _write_text(corpus, text, path)


def write(corpus: Corpus, path: Path | str | None) -> None:
    """Write the corpus as it was read or made, to the same kinds of place."""
    _write_text(corpus, corpus.text, path)


def _write_text(corpus: Corpus, text: str, path: Path | str | None) -> None:
    target = None if path is None or str(path) == "-" else Path(path)
    try:
        data = text.encode(corpus.encoding)
    except UnicodeError as error:
        found = quote(str(error))
        if isinstance(error, UnicodeEncodeError):
            found = quote(text[error.start : error.end])
        cure = "train with tags that this encoding has"
        raise mistake(target, None, f"{corpus.encoding} text", found, cure) from None
    if target is None:
        _write_stdout(data, text)
    else:
        files.write_bytes(
            target, gzip.compress(data, mtime=0) if target.suffix.lower() == ".gz" else data
        )


def predicted_source(corpus: Corpus, sentence: Sentence, tags: Sequence[str]) -> list[str]:
    """Give the sentence's source lines with the predicted tags in them."""
    lines = list(sentence.source)
    if corpus.layout.format == "jsonl":
        place = sentence.token_lines[0]
        ascii_only = not _encodes(tags, corpus.encoding)
        lines[place] = with_predictions(lines[place], tags, ascii_only=ascii_only)
        return lines
    delimiter = corpus.layout.delimiter or "\t"
    for place, tag in zip(sentence.token_lines, tags, strict=True):
        bare = content(lines[place])
        end = lines[place][len(bare) :]
        if corpus.layout.format == "conllu":
            rest, _, misc = bare.rpartition("\t")
            lines[place] = f"{rest}\t{_with_misc(misc, tag)}{end}"
        else:
            lines[place] = f"{bare}{delimiter}{tag}{end}"
    return lines


def conll_source(tokens: Sequence[str], tags: Sequence[str]) -> tuple[str, ...]:
    r"""Write a sentence made in memory as source lines: token, tab, tag; then an empty line.

    A tab or a line feed inside a token or a tag cannot be written so, and is an error.

    >>> conll_source(["New", "York"], ["B-LOC", "I-LOC"])
    ('New\tB-LOC\n', 'York\tI-LOC\n', '\n')
    """
    if len(tokens) != len(tags):
        expected = f"a tag for each of {several(len(tokens), 'token')}"
        raise mistake(None, None, expected, several(len(tags), "tag"), "give as many")
    for text in (*tokens, *tags):
        if "\t" in text or "\n" in text:
            cure = "take it out, or write JSON lines"
            raise mistake(None, None, "text without tab or line feed", quote(text), cure)
    return (*(f"{token}\t{tag}\n" for token, tag in zip(tokens, tags, strict=True)), "\n")


def conll_corpus(
    sentences: Iterable[tuple[Sequence[str], Sequence[str]]], encoding: str = "utf-8"
) -> Corpus:
    r"""Make a corpus in memory from tokens and tags, with the source that a file of it would have.

    It is written in ``encoding``, with the byte order mark that this name stands for.

    >>> made = conll_corpus([(["Rome"], ["B-LOC"]), (["Go", "!"], ["O", "O"])])
    >>> made.text, made.sentences[1].line
    ('Rome\tB-LOC\n\nGo\tO\n!\tO\n\n', 3)
    """
    codec = codec_for(encoding, None)
    made: list[Sentence] = []
    line = 1
    for tokens, tags in sentences:
        source = conll_source(tokens, tags)
        places = tuple(range(len(tokens)))
        made.append(Sentence(tuple(tokens), tuple(tags), source, places, line))
        line += len(source)
    return Corpus(None, Layout("conll", "\t", 2, 0, 1, None), tuple(made), codec)


def _with_misc(misc: str, tag: str) -> str:
    """Put Pred=TAG into a MISC column, over an older one or at the end.

    >>> [_with_misc(misc, "O") for misc in ("_", "SpaceAfter=No", "Pred=X|A=1")]
    ['Pred=O', 'SpaceAfter=No|Pred=O', 'Pred=O|A=1']
    """
    written = MISC_KEY + tag
    if misc in ("", "_"):
        return written
    parts = misc.split("|")
    older = [i for i, part in enumerate(parts) if part.startswith(MISC_KEY)]
    if not older:
        return f"{misc}|{written}"
    parts[older[0]] = written
    return "|".join(part for i, part in enumerate(parts) if i not in older[1:])


def _check_counts(corpus: Corpus, predicted: Sequence[Sequence[str]]) -> None:
    cure = "predict one tag for every token of this corpus"
    if len(predicted) != len(corpus.sentences):
        expected = f"predictions for {several(len(corpus.sentences), 'sentence')}"
        found = several(len(predicted), "sentence")
        raise mistake(corpus.path, None, expected, found, cure)
    for sentence, tags in zip(corpus.sentences, predicted, strict=True):
        if len(tags) != len(sentence.tokens):
            expected = several(len(sentence.tokens), "predicted tag")
            raise mistake(corpus.path, sentence.line, expected, f"{len(tags):,}", cure)


def _check_tags(corpus: Corpus, tags: Iterable[str]) -> None:
    """Refuse a tag that would break the columns it is written to."""
    match corpus.layout.format:
        case "jsonl":
            return
        case "conllu":
            forbidden = "\t\n\r|"
        case _:
            forbidden = "\n\r" + (corpus.layout.delimiter or "\t")
    for tag in tags:
        if not tag or any(character in tag for character in forbidden):
            expected = f"tags that a {corpus.layout.format} column can hold"
            cure = "give the corpus as JSON lines"
            raise mistake(corpus.path, None, expected, quote(tag), cure)


def _encodes(tags: Sequence[str], encoding: str) -> bool:
    try:
        "".join(tags).encode(encoding)
    except UnicodeError:
        return False
    return True


def _write_stdout(data: bytes, text: str) -> None:
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:
        buffer.write(data)
    sys.stdout.flush()
