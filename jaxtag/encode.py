"""Tokens in; integer ids in flat buffers with offsets out.

Word id 0 is padding and nothing else, id 1 is every unknown word. A token also has ids for what
stands inside it, since a fifth of a test set's words are often unseen: hashed affixes and shape,
or characters. Hashes are CRC-32, the same in every process and on every machine.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from jaxtag.config import EncodeConfig, InputError

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
IGNORE = -100  # the label that counts for nothing, PyTorch's ignore_index

AFFIXES = 10  # affixes and shapes of a token
AFFIX_BUCKETS = 2**14
CHARACTER_BUCKETS = 2**12
MAX_CHARACTERS = 16


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
    parts: str
    """affixes, characters or none."""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the word embedding, padding and unknown included."""
        return len(self.words) + FIRST_WORD

    @property
    def part_buckets(self) -> int:
        """Rows of the embedding of what is inside a word; 0 where nothing is seen."""
        match self.parts:
            case "affixes":
                return AFFIX_BUCKETS
            case "characters":
                return CHARACTER_BUCKETS
            case "none":
                return 0
            case other:
                raise EncodeError(
                    f"encode.parts: expected affixes, characters or none, found {other!r}"
                )


def build_encoder(
    sentences: Iterable[Sequence[str]], labels: Sequence[str], config: EncodeConfig
) -> Encoder:
    """Count the words of the training sentences and keep those that are frequent enough.

    At most ``max_words`` words seen at least ``min_count`` times, the most frequent first and in
    alphabetical order where equally frequent.
    """
    counts = Counter(itertools.chain.from_iterable(sentences))
    frequent = [word for word, count in counts.items() if count >= config.min_count]
    frequent.sort(key=lambda word: (-counts[word], word))
    return Encoder(tuple(frequent[: config.max_words]), tuple(labels), config.parts)


def encode(
    sentences: Sequence[Sequence[str]],
    tags: Sequence[Sequence[str] | None] | None,
    encoder: Encoder,
) -> Encoded:
    """Look up every token and tag; a tag that the label list lacks gets -100, as does no tag.

    >>> encoder = Encoder(words=("the",), labels=("O", "B-PER"), parts="none")
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
    parts = _parts_of(list(distinct), encoder.parts)
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


def _parts_of(words: Sequence[str], kind: str) -> Int[np.ndarray, "words W"]:
    match kind:
        case "affixes":
            rows = [_affix_ids(word) for word in words]
            width = AFFIXES
        case "characters":
            rows = [_character_ids(word) for word in words]
            width = MAX_CHARACTERS
        case _:
            return np.zeros((len(words), 0), dtype=np.int32)
    return np.array(rows, dtype=np.int32).reshape(len(words), width)


def _affix_ids(word: str) -> list[int]:
    """Hash a word's lower-case form, its prefixes and suffixes of 1 to 4 letters, its shape.

    A word shorter than an affix has 0, nothing, in that place.
    """
    lower = word.lower()
    features = [f"w{lower}", f"s{shape(word)}"]
    for size in range(1, 5):
        features.append(f"<{word[:size]}" if len(word) >= size else "")
        features.append(f"{lower[-size:]}>" if len(word) >= size else "")
    return [_bucket(feature, AFFIX_BUCKETS) if feature else 0 for feature in features]


def _character_ids(word: str) -> list[int]:
    """Hash a word's characters, padded with 0; of a long word its first and last halves."""
    if len(word) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        word = word[:half] + word[-half:]
    ids = [_bucket(character, CHARACTER_BUCKETS) for character in word]
    return ids + [0] * (MAX_CHARACTERS - len(ids))


def _bucket(text: str, buckets: int) -> int:
    # Surrogates can stand in JSON strings and have no UTF-8 form of their own.
    return 1 + zlib.crc32(text.encode("utf-8", "surrogatepass")) % (buckets - 1)


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
