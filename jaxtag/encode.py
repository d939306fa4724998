"""Tokens in; integer ids in flat buffers with offsets out.

Word id 0 is padding and nothing else, id 1 is every unknown word. A token also has ids for what
stands inside it, since a fifth of a test set's words are often unseen: its affixes and shape, or
its characters. These have a vocabulary of their own and are not hashed: an affix that training
never saw is nothing, where a hash would give it the embedding of some other one.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxtag.config import MAX_FLOAT32, ConfigError, EncodeConfig, InputError

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
IGNORE = -100  # the label that counts for nothing, PyTorch's ignore_index

AFFIX_SIZES = (1, 2, 3, 4)
PARTS = {"affixes": 2 + 2 * len(AFFIX_SIZES), "characters": 16, "none": 0}
"""How many ids, W, a token has for what stands inside it."""


class EncodeError(InputError):
    """Tokens or tags that the vocabulary or the label list cannot serve."""


@dataclass(frozen=True)
class Encoded:
    """A corpus as flat int32 buffers: sentence i is the slice ``offsets[i]:offsets[i + 1]``."""

    ids: Int[np.ndarray, " tokens"]
    parts: Int[np.ndarray, "tokens W"]
    labels: Int[np.ndarray, " tokens"]
    """Label ids; -100 where there is no tag, or one that the label list lacks."""
    offsets: Int[np.ndarray, " sentences_and_one"]

    @property
    def lengths(self) -> Int[np.ndarray, " sentences"]:
        """Tokens of each sentence."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Encoder:
    """All that turns tokens and tags into ids and back; a run keeps it beside the weights."""

    words: tuple[str, ...]
    """Known words; word i has id i + 2."""
    labels: tuple[str, ...]
    """Tags; tag i has label id i."""
    kind: str
    """What is seen inside a word: affixes, characters or none."""
    parts: tuple[str, ...] = ()
    """Known affixes or characters; part i has id i + 1, and 0 is nothing."""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the word embedding, padding and unknown included."""
        return len(self.words) + FIRST_WORD


def build_encoder(
    sentences: Iterable[Sequence[str]], labels: Sequence[str], config: EncodeConfig
) -> Encoder:
    """Count the words of the training sentences and what stands inside them; keep the frequent.

    Words and parts seen at least ``min_count`` times are kept, at most ``max_words`` and
    ``max_parts``, the most frequent first and in alphabetical order where equally frequent.
    """
    words = Counter(itertools.chain.from_iterable(sentences))
    parts: Counter[str] = Counter()
    for word, count in words.items():
        for part in _parts_of(word, config.parts):
            if part:
                parts[part] += count
    return Encoder(
        words=_frequent(words, config.min_count, config.max_words),
        labels=tuple(labels),
        kind=config.parts,
        parts=_frequent(parts, config.min_count, config.max_parts),
    )


def _frequent(counts: Counter[str], min_count: int, size: int) -> tuple[str, ...]:
    names = [name for name, count in counts.items() if count >= min_count]
    names.sort(key=lambda name: (-counts[name], name))
    return tuple(names[:size])


def encode(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str] | None] | None,
    encoder: Encoder,
) -> Encoded:
    """Look up every token and tag; a tag that the label list lacks gets -100, as does no tag.

    >>> encoder = Encoder(words=("the",), labels=("O", "B-PER"), kind="none")
    >>> encoded = encode([["the", "Ada"], ["the"]], [["O", "B-PER"], ["O"]], encoder)
    >>> encoded.ids.tolist(), encoded.labels.tolist(), encoded.offsets.tolist()
    ([2, 1, 2], [0, 1, 0], [0, 2, 3])
    """
    offsets = np.zeros(len(sentences) + 1, dtype=np.int64)
    np.cumsum([len(sentence) for sentence in sentences], out=offsets[1:])
    word_ids = {word: index for index, word in enumerate(encoder.words, FIRST_WORD)}
    # Each distinct word is looked at once; a token is an index into the distinct words.
    distinct: dict[str, int] = {}
    tokens = np.fromiter(
        (
            distinct.setdefault(token, len(distinct))
            for token in itertools.chain.from_iterable(sentences)
        ),
        dtype=np.int64,
        count=int(offsets[-1]),
    )
    ids = np.fromiter(
        (word_ids.get(word, UNKNOWN) for word in distinct), dtype=np.int32, count=len(distinct)
    )
    part_ids = {part: index for index, part in enumerate(encoder.parts, 1)}
    parts = np.array(
        [[part_ids.get(part, 0) for part in _parts_of(word, encoder.kind)] for word in distinct],
        dtype=np.int32,
    ).reshape(len(distinct), PARTS[encoder.kind])
    labels = np.full(tokens.size, IGNORE, dtype=np.int32)
    if tags is not None:
        label_ids = {tag: index for index, tag in enumerate(encoder.labels)}
        labels[:] = _label_ids(sentences, tags, label_ids)
    return Encoded(ids[tokens], parts[tokens], labels, offsets)


def _label_ids(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str] | None],
    label_ids: Mapping[str, int],
) -> list[int]:
    ids: list[int] = []
    for number, (sentence, row) in enumerate(zip(sentences, tags, strict=True), start=1):
        if row is None:
            ids.extend([IGNORE] * len(sentence))
            continue
        if len(row) != len(sentence):
            raise EncodeError(f"sentence {number} has {len(sentence)} tokens but {len(row)} tags")
        ids.extend(label_ids.get(tag, IGNORE) for tag in row)
    return ids


def _parts_of(word: str, kind: str) -> list[str]:
    """Name the W parts of a word; "" is nothing, where a word is shorter than an affix."""
    match kind:
        case "affixes":
            return _affixes(word)
        case "characters":
            return _characters(word, PARTS[kind])
        case "none":
            return []
        case other:
            raise EncodeError(f"encode.parts: expected one of {', '.join(PARTS)}, found {other!r}")


def _affixes(word: str) -> list[str]:
    """A word in lower case, its shape, and its prefixes and lower-case suffixes of 1 to 4."""
    lower = word.lower()
    parts = [f"={lower}", f"~{shape(word)}"]
    for size in AFFIX_SIZES:
        long_enough = len(word) >= size
        parts.append(f"{word[:size]}-" if long_enough else "")
        parts.append(f"-{lower[-size:]}" if long_enough else "")
    return parts


def _characters(word: str, size: int) -> list[str]:
    """A word's characters, and of a long word its first and last."""
    if len(word) > size:
        word = word[: size // 2] + word[-(size // 2) :]
    return [*word, *[""] * (size - len(word))]


def shape(word: str) -> str:
    """Write a word as classes of its characters, runs of one class shortened to two.

    >>> shape("McDonald's"), shape("2026-11"), shape("@jax_tag")
    ("XxXxx'x", 'dd-dd', '@xx_xx')
    """
    classes: list[str] = []
    for character in word:
        if character.isdigit():
            kind = "d"
        elif character.isupper():
            kind = "X"
        elif character.islower():
            kind = "x"
        elif character.isalpha():
            kind = "a"  # letters without case, such as Han characters
        else:
            kind = character
        if classes[-2:] != [kind, kind]:
            classes.append(kind)
    return "".join(classes)


def class_weights(given: Sequence[str], labels: Sequence[str]) -> Float[np.ndarray, " C"] | None:
    """Weights of the classes in the labels' order, from items as ``O=0.5``; None where none is.

    A label without an item has weight 1. Raises ``ConfigError`` for anything else.

    >>> class_weights(["O=0.5"], ["O", "B-PER"]).tolist()
    [0.5, 1.0]
    """
    if not given:
        return None
    weights: dict[str, float] = {}
    for item in given:
        name, _, value = item.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if name not in labels or name in weights or not 0.0 <= weight <= MAX_FLOAT32:
            raise ConfigError(
                "train.class-weights: expected LABEL=WEIGHT with a weight of 0 or more, once for "
                f"any of {show(labels)}, found {item!r}"
            )
        weights[name] = weight
    if not any(weights.get(name, 1.0) for name in labels):
        raise ConfigError("train.class-weights: expected a weight above 0, found none")
    return np.array([weights.get(name, 1.0) for name in labels], np.float32)


def show(names: Sequence[str]) -> str:
    """Names on one line, whatever is in them; of many, the first 40.

    >>> show(["O", "B-PER", "two\\nlines"])
    "O B-PER 'two\\\\nlines'"
    """
    shown = " ".join(name if name.isprintable() else repr(name) for name in names[:40])
    return shown if len(names) <= 40 else f"{shown} … ({len(names) - 40:,} more)"
