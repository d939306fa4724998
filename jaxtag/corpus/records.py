"""What a corpus is made of: sentences, the layout they were found in, and the file's mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxtag.config import InputError
from jaxtag.files import printable


class CorpusError(InputError):
    """A mistake in a corpus file: one line that says where, what was expected, found, and to do."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence: its tokens, their tags if there are any, and the lines it was read from.

    All sources of a file joined give the file's text back. A sentence's source holds the
    comments, blank lines and ``-DOCSTART-`` lines before it and the separator lines after it.
    """

    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None
    source: tuple[str, ...]
    """Raw lines with their line ends."""
    token_lines: tuple[int, ...]
    """Where in ``source`` the tokens stand: a line each in columns, one line in JSON lines."""
    line: int
    """Line of the first token in the file, from 1."""


@dataclass(frozen=True)
class Layout:
    """How a file is laid out, and how that was found."""

    format: str
    """conll, conllu or jsonl."""
    delimiter: str | None
    """Tab or space; None in JSON lines."""
    columns: int
    """Columns of a token line; 0 in JSON lines."""
    token_column: int
    """From 0."""
    tag_column: int | None
    """From 0; None without tags."""
    comment: str | None
    """Lines that begin so are comments; None: no line is one."""
    token_guessed: bool = False
    """The token column was not given."""
    tag_guessed: bool = False
    """The tag column was not given."""
    keys: tuple[str, str | None] = ("tokens", "tags")
    """Keys of tokens and tags in JSON lines."""
    ids: str | None = None
    """What became of the tag ids in JSON lines: ``named``, ``numbers``; None: there were none."""

    def describe(self) -> str:
        """One line to show: what was read as what, and what of it was a guess.

        >>> Layout("conll", "\\t", 5, 1, 2, "#", True, True).describe()
        'conll, 5 columns separated by tabs, token in column 2, tag in column 3 (guessed)'
        """
        if self.format == "jsonl":
            return self._describe_jsonl()
        columns = f"{self.columns} column{'s' if self.columns != 1 else ''}"
        if self.columns > 1:
            columns += f" separated by {'tabs' if self.delimiter == chr(9) else 'spaces'}"
        token = f"token in column {self.token_column + 1}"
        tag = "no tags" if self.tag_column is None else f"tag in column {self.tag_column + 1}"
        tag_guessed = self.tag_guessed and self.tag_column is not None
        if self.token_guessed and self.columns > 1 and not tag_guessed:
            token += " (guessed)"
        if tag_guessed:
            tag += " (guessed)" if self.token_guessed else " (this one guessed)"
        return f"{self.format}, {columns}, {token}, {tag}"

    def _describe_jsonl(self) -> str:
        tokens, tags = self.keys
        tag = "no tags" if tags is None else f'tags in "{tags}"'
        match self.ids:
            case "named":
                tag += ", ids named by --data.labels"
            case "numbers":
                tag += ", ids kept as numbers (--data.labels would name them)"
        return f'jsonl, tokens in "{tokens}", {tag}'


@dataclass(frozen=True)
class Corpus:
    """A corpus file as read: ``sentences`` in order, and what is needed to write them again."""

    path: Path | None
    layout: Layout
    sentences: tuple[Sentence, ...]
    encoding: str
    """Codec to write with; as read, one without a byte order mark, which stays in the source."""

    @property
    def token_count(self) -> int:
        """How many tokens all sentences have together."""
        return sum(len(sentence.tokens) for sentence in self.sentences)

    @property
    def tagged(self) -> bool:
        """Whether every sentence has tags."""
        return all(sentence.tags is not None for sentence in self.sentences)

    @property
    def text(self) -> str:
        """The file's text, byte order mark and line ends included."""
        return "".join(line for sentence in self.sentences for line in sentence.source)


def mistake(
    path: Path | str | None, line: int | None, expected: str, found: str, cure: str
) -> CorpusError:
    """Build the error ``path:line: expected …, found …; what to do`` as one line.

    >>> print(mistake("a.conll", 7, "a token and a tag", "'dog'", "add the tag"))
    a.conll:7: expected a token and a tag, found 'dog'; add the tag
    """
    place = "<memory>" if path is None else printable(path)
    where = place if line is None else f"{place}:{line}"
    return CorpusError(f"{where}: expected {expected}, found {found}; {cure}")


def quote(text: str) -> str:
    """Show ``text`` as a Python literal, cut after 60 characters."""
    return repr(text) if len(text) <= 60 else f"{text[:60]!r}…"


def several(count: int, noun: str) -> str:
    """Count a noun: ``1 column``, ``2 columns``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def group(kinds: Sequence[str], *, one_line: bool = False) -> list[tuple[int, int, list[int]]]:
    """Lines' kinds in, sentences out: first line, end line and the token lines of each.

    Kinds are ``token``, ``blank`` (ends a sentence), ``boundary`` (ends one and belongs to the
    next) and ``aside`` (a comment). ``one_line``: every token line is a sentence. Separators go
    to the sentence before them, everything else to the one that it stands before.

    >>> group(["aside", "token", "blank", "boundary", "blank", "token", "token", "blank"])
    [(0, 3, [1]), (3, 8, [5, 6])]
    """
    groups: list[tuple[int, int, list[int]]] = []
    start, cut, ended = 0, -1, False
    tokens: list[int] = []
    for i, kind in enumerate(kinds):
        if kind == "blank":
            ended = True
            continue
        if kind == "boundary":
            ended = True
        if ended and tokens and cut < 0:
            cut = i
        if kind == "token":
            if cut >= 0:
                groups.append((start, cut, tokens))
                start, cut, tokens = cut, -1, []
            tokens.append(i)
            ended = one_line
    if tokens:
        groups.append((start, len(kinds), tokens))
    return groups
