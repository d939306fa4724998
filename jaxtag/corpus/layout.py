"""A file's lines in, its format, its delimiter and the columns of token and tag out.

Everything is decided once for the whole file: a guess from the first lines breaks on the first
sentence that has no entity.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from jaxtag import labels
from jaxtag.config import DataConfig
from jaxtag.corpus.lines import is_blank
from jaxtag.corpus.records import Layout, mistake, quote, several

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
CONLLU_ID = re.compile(r"[0-9]+(?:-[0-9]+|\.[0-9]+)?\Z")
DOCSTART = "-DOCSTART-"
UNLABELLED = frozenset({"", "_", "-"})
_MOST_TAGS = 2_000


def find_format(
    path: Path, bare: Sequence[str], options: DataConfig
) -> Literal["conll", "conllu", "jsonl"]:
    """Name the format: as given, else by the file's name, else by its content."""
    if options.format != "auto":
        return options.format
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    match suffixes[-1] if suffixes else "":
        case ".jsonl" | ".json":
            return "jsonl"
        case ".conllu":
            return "conllu"
    filled = (line for line in bare if not is_blank(line))
    if next(filled, "").lstrip(" \t").startswith("{"):
        return "jsonl"
    return "conllu" if _looks_conllu(bare) else "conll"


def _looks_conllu(bare: Iterable[str]) -> bool:
    """Whether all token lines, and at least one, have ten tab columns and begin with an id."""
    found = False
    for line in bare:
        if line.startswith("#") or is_blank(line):
            continue
        if line.count("\t") != 9 or not CONLLU_ID.match(line.partition("\t")[0]):
            return False
        found = True
    return found


def find_delimiter(path: Path, bare: Sequence[str], options: DataConfig) -> str:
    """Tab or space for the whole file: the tab if any line that holds a token has one."""
    match options.delimiter:
        case "tab":
            return "\t"
        case "space":
            return " "
    comment = "#" if options.comment == "auto" else options.comment
    filled = [(i, line) for i, line in enumerate(bare) if not is_blank(line)]
    # A comment may hold a tab in a file of spaces; hashtags alone are no comments.
    sure = [
        (i, line)
        for i, line in filled
        if not (comment and line.startswith(comment)) and not line.startswith(DOCSTART)
    ] or filled
    tabbed = [i for i, line in sure if "\t" in line]
    if 0 < len(tabbed) < len(sure) / 2 and all(
        " " in line.strip(" ") for _, line in sure if "\t" not in line
    ):
        expected = "columns separated by spaces as on the other lines"
        cure = "replace the tab, or give --data.delimiter tab or space"
        raise mistake(path, tabbed[0] + 1, expected, f"a tab in {quote(bare[tabbed[0]])}", cure)
    return "\t" if tabbed else " "


def split_columns(line: str, delimiter: str) -> list[str]:
    r"""Split one line; only ASCII spaces separate, in runs, where spaces do.

    >>> split_columns("New\xa0York  B-LOC", " ")
    ['New\xa0York', 'B-LOC']
    """
    if delimiter == "\t":
        return line.split("\t")
    return [part for part in line.split(" ") if part]


def find_column(flag: str, given: str, columns: int, path: Path, *, names: bool) -> int:
    """Turn a column flag's number (from 1, or from -1 backwards) or name into an index from 0."""
    if names and given.lower() in CONLLU_COLUMNS:
        return CONLLU_COLUMNS.index(given.lower())
    try:
        number = int(given)
    except ValueError:
        number = 0
    if 1 <= number <= columns:
        return number - 1
    if -columns <= number <= -1:
        return columns + number
    names_too = f", or {' '.join(CONLLU_COLUMNS)}" if names else ""
    expected = f"--data.{flag} to be auto, 1 to {columns}, or -1 to -{columns}{names_too}"
    found = f"{quote(given)} where the file has {several(columns, 'column')}"
    raise mistake(path, None, expected, found, "give another column")


def with_columns(options: DataConfig, like: Layout | None, file: tuple[str, int]) -> DataConfig:
    """Give the options the columns of ``like`` where the file has its format, and no fewer.

    A file of more columns is mostly one with predictions added.
    """
    if like is None or file[0] != like.format or file[1] < like.columns:
        return options
    return replace(
        options,
        token_column=_column(options.token_column, like.token_column),
        tag_column=_column(options.tag_column, like.tag_column),
    )


def _column(given: str, index: int | None) -> str:
    return given if given != "auto" or index is None else str(index + 1)


def guess_tag_column(
    rows: Sequence[Sequence[str]], sentences: Sequence[Sequence[int]], taken: int | None
) -> int | None:
    """Guess which column holds the tags, looking at every row; None where no column can.

    The last column of entity tags (see ``entity_values``), else the last that holds nothing but
    O, else (parts of speech) the last that has few distinct values and is no index. ``taken``
    is the token's column where it is known; ``sentences`` are row numbers.
    """
    columns = len(rows[0])
    free = [column for column in range(columns) if column != taken]
    if columns == 1 or not free:
        return None
    values = {column: Counter(row[column] for row in rows) for column in free}
    for column in reversed(free):
        fits, entities = entity_values(values[column])
        # Of two columns the last wins even if it is O alone: a token may look like B-X.
        if entities or (fits and column == 1 and columns == 2):
            return column
    for column in reversed(free):
        if set(values[column]) == {"O"}:
            return column
    most = min(max(100, len(rows) // 10), _MOST_TAGS)
    few = [column for column in free if len(values[column]) <= most]
    if columns == 2:
        return 0 if free == [0] or (few == [0] and taken is None) else 1
    varied = [
        column
        for column in free
        if len(values[column]) >= 2 and not is_index(rows, sentences, column)
    ]
    # The first column of words holds the tokens, unless it alone has few distinct values.
    tags = [column for column in varied[taken is None :] if column in few]
    if not tags and len(varied) > 1 and varied[0] in few:
        return varied[0]
    return tags[-1] if tags else None


def entity_values(values: Counter[str]) -> tuple[bool, bool]:
    """Whether the values are entity tags, O included; and whether one has a type.

    One in a hundred may be no tag: a wrong tag is for the reader of tags to report, and must not
    make another column the tag.
    """
    kinds: Counter[str] = Counter()
    for value, count in values.items():
        if value in ("O", "o", "0"):
            kinds["outside"] += count
        elif value:
            kinds["entity" if _is_entity(value) else "other"] += count
    fits = kinds["other"] * 100 <= values.total() and kinds["outside"] + kinds["entity"] > 0
    return fits, fits and kinds["entity"] > 0


def _is_entity(tag: str) -> bool:
    """Whether the tag has a prefix (or suffix) and a type."""
    letter, kind = labels.split_tag(tag)
    return letter != "O" and kind != ""


def guess_token_column(
    rows: Sequence[Sequence[str]], sentences: Sequence[Sequence[int]], tag_column: int | None
) -> int:
    """Guess which column holds the tokens: the first that is neither the tag nor an index."""
    free = [column for column in range(len(rows[0])) if column != tag_column]
    for column in free[:-1]:
        if not is_index(rows, sentences, column):
            return column
    return free[-1] if len(free) > 1 and not is_index(rows, sentences, free[-1]) else free[0]


def is_index(
    rows: Sequence[Sequence[str]], sentences: Sequence[Sequence[int]], column: int
) -> bool:
    """Whether the column counts the tokens of every sentence, from 1 or from 0."""
    first = rows[0][column]
    if first not in ("0", "1"):
        return False
    base = int(first)
    return all(
        rows[row][column] == str(base + place)
        for sentence in sentences
        for place, row in enumerate(sentence)
    )
