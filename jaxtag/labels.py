"""Tag strings to entity spans and back, in every scheme.

A span scheme marks each token with a letter and a type, as ``B-PER``; a malformed tag is one that
the scheme's rules forbid where it stands. What becomes of it is the reader's choice, so every
function that reads entities takes a scheme and a mode. IOB1 is from Ramshaw & Marcus (1995); IOB2,
IOE1 and IOE2 from Tjong Kim Sang & Veenstra (1999); BILOU from Ratinov & Roth (2009); IOBES is
BILOU with E for L and S for U.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from jaxtag.config import InputError

SCHEMES = ("IO", "IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU", "plain")
MODES = ("lenient", "strict")

# Each scheme's letters, and its chunks; "~" is a token of the same type directly before or after.
# detect_scheme prefers them in this order.
_RULES = {
    "IO": ("I", "~?I+~?"),
    "IOB2": ("BI", "~?BI*~?"),
    "IOB1": ("BI", "~?I+~?|~BI*~?"),
    "IOE2": ("IE", "~?I*E~?"),
    "IOE1": ("IE", "~?I+~?|~?I*E~"),
    "IOBES": ("BIES", "~?(S|BI*E)~?"),
    "BILOU": ("BILU", "~?(U|BI*L)~?"),
}
_WRITTEN = frozenset("OBIMESLUobimeslu")


class LabelError(InputError):
    """A scheme, a mode or a set of spans that tags cannot express."""


class Span(NamedTuple):
    """An entity: its type and the tokens of its sentence that it covers, the end exclusive."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """A tag string to its letter (O, B, I, E or S) and its type.

    L reads as E, U as S and M as I, in either case. The type is all that follows the first
    hyphen, so it may hold more of them; ``B_PER`` reads as ``B-PER``; a bare letter is an entity
    of type "". Where no letter comes first but one comes last, the tag is read as ``PER-B``.
    Any other tag is outside: OTHER, NOUN, o, 0. (seqeval takes the first character of any tag
    as its letter, which makes entities of these.)

    >>> split_tag("B-creative-work"), split_tag("L-PER"), split_tag("PER-B"), split_tag("NOUN")
    (('B', 'creative-work'), ('E', 'PER'), ('B', 'PER'), ('O', ''))
    """
    letter, type_ = _read(tag)
    return {"L": "E", "U": "S", "M": "I"}.get(letter, letter), type_


def spans(tags: Sequence[str], scheme: str, mode: str = "lenient") -> list[Span]:
    """The tags of one sentence to its entities, in order.

    Lenient reads any letters: a chunk starts at B and S, after E and S, after an outside token
    and where the type changes (conlleval.pl; seqeval without ``mode``), whatever the scheme. L, U
    and M are read too, and tags without a letter are outside, where seqeval finds other entities.

    Strict cuts the same chunks, and drops whole each one whose letters the scheme does not have or
    does not allow in that order. IOB1 allows B only directly after a token of the same type, IOE1
    allows E only directly before one. This is seqeval with ``mode="strict"`` except in two schemes.
    IOB1, where a B is not allowed: seqeval reads ``B-LOC I-LOC`` after O as an entity that starts
    at its second token, and drops a right ``B-LOC`` before a wrong ``B-PER``. IOE1: seqeval misses
    an entity of one token directly before another of its type, as ``E-LOC I-LOC``.

    Raises ``LabelError`` for an unknown scheme or mode, and for plain tags, which have no entities.

    >>> spans(["O", "I-PER", "I-PER", "B-LOC"], "IOB2")
    [Span(type='PER', start=1, end=3), Span(type='LOC', start=3, end=4)]
    >>> spans(["O", "I-PER", "I-PER", "B-LOC"], "IOB2", mode="strict")
    [Span(type='LOC', start=3, end=4)]
    """
    _check_scheme(scheme, plain=False)
    if mode not in MODES:
        raise LabelError(f"mode: expected one of {', '.join(MODES)}; found {mode!r}")
    found = _chunks(tags)
    if mode == "strict":
        found = [chunk for chunk in found if _well_formed(chunk.letters, scheme)]
    return [chunk.span for chunk in found]


def tags_from_spans(spans: Iterable[Span], length: int, scheme: str) -> list[str]:
    """The entities of a sentence of ``length`` tokens to its tags: the inverse of ``spans``.

    The spans come in any order. IO has no mark for where one entity ends and the next of the same
    type begins: such neighbours are read back as one. Raises ``LabelError`` for spans that
    overlap, are empty, or leave the sentence.

    >>> tags_from_spans([Span("PER", 0, 1), Span("PER", 1, 3)], 4, "IOB1")
    ['I-PER', 'B-PER', 'I-PER', 'O']
    """
    _check_scheme(scheme, plain=False)
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    type_ending_at = {span.end: span.type for span in ordered}
    type_starting_at = {span.start: span.type for span in ordered}
    tags = ["O"] * length
    last = Span("", 0, 0)
    for span in ordered:
        if not 0 <= span.start < span.end <= length:
            raise LabelError(f"expected spans inside a sentence of {length} tokens; found {span}")
        if span.start < last.end:
            raise LabelError(f"expected spans that do not overlap; found {last} and {span}")
        last = span
        letters = _span_letters(
            span.end - span.start,
            scheme,
            touches_last=type_ending_at.get(span.start) == span.type,
            touches_next=type_starting_at.get(span.end) == span.type,
        )
        tail = f"-{span.type}" if span.type else ""
        tags[span.start : span.end] = [letter + tail for letter in letters]
    return tags


def malformed(tags: Sequence[str], scheme: str) -> list[int]:
    """The tags of one sentence to the positions of those that strict reading drops.

    All tokens of a malformed chunk count. Outside tags never do, and plain tags have no chunks.

    >>> malformed(["B-PER", "I-LOC", "I-LOC", "O", "B-LOC"], "IOB2")
    [1, 2]
    """
    _check_scheme(scheme, plain=True)
    if scheme == "plain":
        return []
    return [
        position
        for chunk in _chunks(tags)
        if not _well_formed(chunk.letters, scheme)
        for position in range(chunk.span.start, chunk.span.end)
    ]


def detect_scheme(sequences: Iterable[Sequence[str]]) -> str:
    """All tag sequences of a corpus to the name of their scheme.

    Plain, if at most half of the distinct tags other than O (or o, 0) have a letter; BILOU, if an L
    or U was seen; else the scheme that has all letters seen and the fewest malformed tags, the
    first of IO, IOB2, IOB1, IOE2, IOE1, IOBES where several do. No tag but O at all: IOB2.
    Look at the whole corpus: its first sentences may show too few letters.

    >>> detect_scheme([["O", "O"], ["B-LOC", "O", "B-PER", "I-PER"]])
    'IOB2'
    >>> detect_scheme([["DET", "NOUN"]])
    'plain'
    """
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    for tags in sequences:
        seen.update(tags)
        counts.update(chunk.letters for chunk in _chunks(tags))
    marked = seen - {"O", "o", "0"}
    if not marked:
        return "IOB2"
    if 2 * sum(_read(tag)[0] != "O" for tag in marked) <= len(marked):
        return "plain"
    letters = set("".join(counts)) - {"~"}
    if letters & {"L", "U"}:
        return "BILOU"

    def bad(scheme: str) -> int:
        return sum(
            count * len(chunk.replace("~", ""))
            for chunk, count in counts.items()
            if not _well_formed(chunk, scheme)
        )

    candidates = (scheme for scheme, (own, _) in _RULES.items() if letters <= set(own))
    return min(candidates, key=bad)  # min keeps the first of equals


def complete_labels(tags: Iterable[str], scheme: str) -> tuple[str, ...]:
    """The tags seen in a corpus to the label list of a model, in an order that is always the same.

    In a span scheme O comes first, then every letter of the scheme for each type seen, so that the
    model can write an I that follows a B even where training data has only the B. Tags are
    sorted by type, then in the scheme's order of letters. Every tag seen is in the list as it was
    spelled, be it outside or foreign to the scheme, and the tags added to a type follow its
    spelling. Plain tags are sorted by name.

    >>> complete_labels(["O", "B-PER", "B-LOC", "I-LOC"], "IOB2")
    ('O', 'B-LOC', 'I-LOC', 'B-PER', 'I-PER')
    """
    _check_scheme(scheme, plain=True)
    seen = sorted(set(tags))
    if scheme == "plain":
        return tuple(seen)
    letters, _ = _RULES[scheme]
    read = [(tag, *_read(tag)) for tag in seen]
    entities = [(tag, letter, type_) for tag, letter, type_ in read if letter != "O"]
    raw = {letter for _, letter, _ in entities}
    inside = "M" if "M" in raw and "I" not in raw else "I"
    labels = ["O", *(tag for tag, letter, _ in read if letter == "O" and tag != "O")]
    for type_ in sorted({type_ for _, _, type_ in entities}):
        own = [(tag, letter.replace("M", "I")) for tag, letter, of in entities if of == type_]
        for wanted in letters:
            spelled = [tag for tag, letter in own if letter == wanted]
            labels += spelled or [_spell(wanted.replace("I", inside), like=own[0][0])]
        labels += [tag for tag, letter in own if letter not in letters]
    return tuple(labels)


class _Chunk(NamedTuple):
    """A span with the letters of its tokens; "~" marks a neighbour of the same type."""

    span: Span
    letters: str


def _chunks(tags: Sequence[str]) -> list[_Chunk]:
    """Tags to the chunks of lenient reading; strict reading only drops some of them."""
    if isinstance(tags, str):
        raise LabelError(f"expected a list of tags; found the string {tags!r}: put it in a list")
    found: list[_Chunk] = []
    letter, type_ = "O", ""
    for position, tag in enumerate(tags):
        before, type_before = letter, type_
        letter, type_ = _read(tag)
        if letter == "O":
            continue
        letter = letter.replace("M", "I")
        touches = before != "O" and type_before == type_
        if touches and before not in "ESLU" and letter not in "BSU":
            span, letters = found[-1]
            found[-1] = _Chunk(Span(type_, span.start, position + 1), letters + letter)
            continue
        if touches:
            found[-1] = _Chunk(found[-1].span, found[-1].letters + "~")
        found.append(_Chunk(Span(type_, position, position + 1), "~" * touches + letter))
    return found


def _well_formed(letters: str, scheme: str) -> bool:
    return re.fullmatch(_RULES[scheme][1], letters) is not None


@lru_cache(maxsize=65536)
def _read(tag: str) -> tuple[str, str]:
    """A tag to its letter as written (O, B, I, M, E, S, L or U, upper case) and its type."""
    if _letter_first(tag):
        letter, type_ = tag[0], tag[2:]
    else:
        type_, _, letter = tag.rpartition("-")
        letter = letter if type_ else "O"
    return (letter.upper(), type_) if letter in _WRITTEN - {"O", "o"} else ("O", "")


def _letter_first(tag: str) -> bool:
    return tag[:1] in _WRITTEN and tag[1:2] in ("", "-", "_")


def _spell(letter: str, like: str) -> str:
    """A letter put where the tag ``like`` has its own, in the same case."""
    first = _letter_first(like)
    own = like[0] if first else like[-1]
    letter = letter.lower() if own.islower() else letter
    return letter + like[1:] if first else like[:-1] + letter


def _span_letters(width: int, scheme: str, *, touches_last: bool, touches_next: bool) -> str:
    """The letters of an entity of ``width`` tokens."""
    match scheme:
        case "IOB1":
            return ("B" if touches_last else "I") + "I" * (width - 1)
        case "IOB2":
            return "B" + "I" * (width - 1)
        case "IOE1":
            return "I" * (width - 1) + ("E" if touches_next else "I")
        case "IOE2":
            return "I" * (width - 1) + "E"
        case "IOBES":
            return "S" if width == 1 else "B" + "I" * (width - 2) + "E"
        case "BILOU":
            return "U" if width == 1 else "B" + "I" * (width - 2) + "L"
        case _:
            return "I" * width


_OTHER_NAMES = {"BIO": "IOB2", "BIO1": "IOB1", "BIO2": "IOB2", "BIOES": "IOBES", "BILUO": "BILOU"}


def _check_scheme(scheme: str, *, plain: bool) -> None:
    if scheme == "plain" and not plain:
        raise LabelError(
            "scheme: plain tags have no entities; score the tags themselves, "
            f"or read them as one of {', '.join(_RULES)}"
        )
    if scheme not in SCHEMES:
        known = f"scheme: expected one of {', '.join(SCHEMES)}; found {scheme!r}"
        other = _OTHER_NAMES.get(scheme.upper())
        raise LabelError(f"{known}, which is called {other} here" if other else known)
