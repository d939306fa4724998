"""Lines of columns in (CoNLL, CoNLL-U), their layout and sentences out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxtag.config import DataConfig
from jaxtag.corpus.layout import (
    CONLLU_ID,
    DOCSTART,
    UNLABELLED,
    entity_values,
    find_column,
    find_delimiter,
    guess_tag_column,
    guess_token_column,
    is_index,
    split_columns,
    with_columns,
)
from jaxtag.corpus.lines import is_blank
from jaxtag.corpus.records import (
    CorpusError,
    Layout,
    Sentence,
    group,
    mistake,
    quote,
    several,
)

Read = tuple[Layout, tuple[Sentence, ...]]
_WHAT = {"\t": "tabs", " ": "spaces"}


def read_conll(
    path: Path,
    lines: list[str],
    bare: list[str],
    options: DataConfig,
    *,
    tagged: bool,
    like: Layout | None,
) -> Read:
    """Read columns of any number: all token lines have the same, the most frequent one."""
    delimiter = find_delimiter(path, bare, options)
    kinds, parts = _classify(bare, delimiter, options)
    columns, comment = _expected_columns(bare, kinds, parts, options)
    if comment == "#" and options.comment == "auto":
        for i, line in enumerate(bare):
            if kinds[i] == "token" and line.startswith("#") and len(parts[i]) == 1:
                kinds[i] = "aside"
    groups = group(kinds)
    if not groups:
        return _no_columns(delimiter, comment), ()
    token_lines = [i for i, kind in enumerate(kinds) if kind == "token"]
    for i in token_lines:
        if len(parts[i]) != columns:
            raise _wrong_columns(path, i, bare[i], len(parts[i]), columns, delimiter, tagged)
    options = with_columns(options, like, ("conll", columns))
    rows = [parts[i] for i in token_lines]
    row_of = {line: row for row, line in enumerate(token_lines)}
    sentences = [[row_of[i] for i in members] for _, _, members in groups]
    layout = _find_layout(path, rows, sentences, options, delimiter, tagged=tagged)
    layout = replace(layout, comment=comment)
    return layout, _sentences(path, lines, groups, parts, layout, tagged=tagged)


def _no_columns(delimiter: str, comment: str | None) -> Layout:
    return Layout("conll", delimiter, 0, 0, None, comment)


def _classify(
    bare: Sequence[str], delimiter: str, options: DataConfig
) -> tuple[list[str], list[list[str]]]:
    """Each line's kind (see ``group``) and, where it may be a token, its columns."""
    comment = "" if options.comment == "auto" else options.comment
    kinds: list[str] = []
    parts: list[list[str]] = []
    for line in bare:
        columns: list[str] = []
        if is_blank(line):
            kinds.append("blank")
        elif comment and line.startswith(comment):
            kinds.append("aside")
        elif line.startswith(DOCSTART) and line[len(DOCSTART) :][:1] in ("", " ", "\t"):
            kinds.append("boundary")
        else:
            kinds.append("token")
            columns = split_columns(line, delimiter)
        parts.append(columns)
    return kinds, parts


def _expected_columns(
    bare: Sequence[str], kinds: Sequence[str], parts: Sequence[list[str]], options: DataConfig
) -> tuple[int, str | None]:
    """The most frequent number of columns, the larger of equals; and what begins a comment."""
    tokens = [i for i, kind in enumerate(kinds) if kind == "token"]
    plain = [i for i in tokens if not bare[i].startswith("#")]
    counts = Counter(len(parts[i]) for i in plain or tokens)
    columns = max(counts, key=lambda number: (counts[number], number), default=0)
    if options.comment != "auto":
        return columns, options.comment or None
    return columns, "#" if columns >= 3 else None


def _wrong_columns(
    path: Path, i: int, line: str, found: int, columns: int, delimiter: str, tagged: bool
) -> CorpusError:
    what = f" separated by {_WHAT[delimiter]}"
    expected = several(columns, "column") + what if columns > 1 else "1 column"
    if columns == 2:
        expected = f"a token and a tag{what}"
    seen = f"{several(found, 'column')}: {quote(line)}"
    if line.startswith("#"):
        cure = "if it is a comment, give --data.comment '#'"
    elif found < columns and tagged:
        seen = f"only {seen}"
        cure = "add the missing tag" if found == columns - 1 else "add the missing columns"
    else:
        cure = f"give every line {several(columns, 'column')}, or another --data.delimiter"
    return mistake(path, i + 1, expected, seen, cure)


def _find_layout(
    path: Path,
    rows: Sequence[Sequence[str]],
    sentences: Sequence[Sequence[int]],
    options: DataConfig,
    delimiter: str,
    *,
    tagged: bool,
) -> Layout:
    columns = len(rows[0])
    token = tag = None
    if options.token_column != "auto" and (tagged or columns > 1):
        token = find_column("token-column", options.token_column, columns, path, names=False)
    if options.tag_column != "auto":
        tag = _given_tag_column(path, options, columns, tagged=tagged)
    elif tagged or not _index_and_token(rows, sentences):
        tag = guess_tag_column(rows, sentences, token)
    if tag is not None and {row[tag] for row in rows} <= UNLABELLED:
        tag = None
    if token is None:
        token = guess_token_column(rows, sentences, tag) if columns > 1 else 0
    if token == tag:
        if tagged:
            found = f"column {token + 1} of {columns} for both"
            cure = "give --data.token-column and --data.tag-column"
            raise mistake(path, None, "a token and a tag column", found, cure)
        tag = None
    if tag is None and tagged:
        found = f"{several(columns, 'column')} and none that looks like tags"
        cure = "give --data.tag-column or --data.delimiter, or add the tags"
        raise mistake(path, None, "a token and a tag on every line", found, cure)
    guessed = options.token_column == "auto", options.tag_column == "auto"
    return Layout("conll", delimiter, columns, token, tag, None, *guessed)


def _given_tag_column(path: Path, options: DataConfig, columns: int, *, tagged: bool) -> int | None:
    try:
        return find_column("tag-column", options.tag_column, columns, path, names=False)
    except CorpusError:
        if tagged:
            raise
        return None


def _index_and_token(rows: Sequence[Sequence[str]], sentences: Sequence[Sequence[int]]) -> bool:
    """Whether the rows are an index and a token, which is no tag."""
    if len(rows[0]) != 2 or not is_index(rows, sentences, 0):
        return False
    return not entity_values(Counter(row[1] for row in rows))[0]


def read_conllu(
    path: Path,
    lines: list[str],
    bare: list[str],
    options: DataConfig,
    *,
    tagged: bool,
    like: Layout | None,
) -> Read:
    """Read CoNLL-U: words are tokens; ranges (1-2) and empty nodes (8.1) stay in the source."""
    token, tag = 1, 3
    options = with_columns(options, like, ("conllu", 10))
    if options.token_column != "auto":
        token = find_column("token-column", options.token_column, 10, path, names=True)
    if options.tag_column != "auto":
        tag = find_column("tag-column", options.tag_column, 10, path, names=True)
    comment = "#" if options.comment == "auto" or not options.comment else options.comment
    kinds: list[str] = []
    parts: list[tuple[str, str]] = []
    for i, line in enumerate(bare):
        pair = "", ""
        if is_blank(line):
            kinds.append("blank")
        elif line.startswith(("#", comment)):
            kinds.append("aside")
        else:
            columns = line.split("\t")
            word = columns[0].isdigit() and columns[0].isascii()
            if len(columns) != 10 or not (word or CONLLU_ID.match(columns[0])):
                raise _not_conllu(path, i, line, columns)
            kinds.append("token" if word else "aside")
            pair = columns[token], columns[tag]
        parts.append(pair)
    layout = Layout("conllu", "\t", 10, token, tag, comment)
    tags = {pair[1] for pair, kind in zip(parts, kinds, strict=True) if kind == "token"}
    if tags <= {"_"}:
        layout = replace(layout, tag_column=None)
    pairs = replace(layout, token_column=0, tag_column=None if tags <= {"_"} else 1)
    return layout, _sentences(path, lines, group(kinds), parts, pairs, tagged=tagged)


def _not_conllu(path: Path, i: int, line: str, columns: Sequence[str]) -> CorpusError:
    if len(columns) != 10:
        expected = "10 columns separated by tabs (CoNLL-U)"
        found = f"{several(len(columns), 'column')}: {quote(line)}"
    else:
        expected, found = "an id such as 1, 1-2 or 8.1 in column 1", quote(columns[0])
    return mistake(path, i + 1, expected, found, "correct it, or give --data.format conll")


def _sentences(
    path: Path,
    lines: Sequence[str],
    groups: Sequence[tuple[int, int, list[int]]],
    parts: Sequence[Sequence[str]],
    layout: Layout,
    *,
    tagged: bool,
) -> tuple[Sentence, ...]:
    token, tag = layout.token_column, layout.tag_column
    missing = {"", "_"} if layout.format == "conllu" else {""}
    sentences = []
    for start, end, members in groups:
        tags = None if tag is None else tuple([parts[i][tag] for i in members])
        if tags is not None and not missing.isdisjoint(tags):
            if tagged:
                bad = next(i for i in members if tag is not None and parts[i][tag] in missing)
                found = f"{quote(parts[bad][tag or 0])} beside {quote(parts[bad][token])}"
                raise mistake(path, bad + 1, "a tag", found, "add the missing tag")
            tags = None
        sentences.append(
            Sentence(
                tokens=tuple([parts[i][token] for i in members]),
                tags=tags,
                source=tuple(lines[start:end]),
                token_lines=tuple([i - start for i in members]),
                line=members[0] + 1,
            )
        )
    return tuple(sentences)
