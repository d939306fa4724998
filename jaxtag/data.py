"""A config in; the corpora of a training as ids, their vocabularies and shapes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxtag import corpus, demo, labels, plan
from jaxtag.config import Config, ConfigError
from jaxtag.corpus import Corpus
from jaxtag.encode import Encoded, Encoder, build_encoder, encode, show

SPLITS: tuple[demo.Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class Split:
    """One corpus, ready for batches."""

    corpus: Corpus
    gold: Sequence[Sequence[str]]
    encoded: Encoded


@dataclass(frozen=True)
class Data:
    """The corpora of a training and what was learnt from the training one."""

    name: str
    splits: dict[str, Split]
    encoder: Encoder
    scheme: str
    shapes: plan.ShapePlan

    @property
    def train(self) -> Encoded:
        """The training sentences."""
        return self.splits["train"].encoded


def read(config: Config, say: Callable[[str], None]) -> Data:
    """Read the corpora, choose scheme, labels and vocabulary, plan shapes over all of them.

    What was found, and warnings, are told to ``say`` line by line.
    """
    corpora = _read_corpora(config)
    for name, read_corpus in corpora.items():
        say(_describe(name, read_corpus))
    tags = [sentence.tags for sentence in corpora["train"].sentences if sentence.tags]
    scheme = config.data.scheme if config.data.scheme != "auto" else labels.detect_scheme(tags)
    label_list = labels.complete_labels(itertools.chain.from_iterable(tags), scheme)
    say(f"scheme {scheme}, {len(label_list)} labels: {show(label_list)}")
    encoder = build_encoder(
        (sentence.tokens for sentence in corpora["train"].sentences), label_list, config.encode
    )
    splits = {name: _encode_split(read_corpus, encoder) for name, read_corpus in corpora.items()}
    for name, split in splits.items():
        if missing := unseen(split.gold, label_list):
            say(f"warning: {unseen_warning(name, missing)}")
    # Dev and test only add shapes for their longer sentences: what is tested, and whether, must
    # not change the batches that are trained on.
    size = {
        "batch_tokens": config.train.batch_tokens,
        "row_multiple": config.data.row_multiple,
    }
    shapes = plan.choose_shapes(splits["train"].encoded.lengths, shapes=config.data.shapes, **size)
    for split in splits.values():
        shapes = plan.extend_shapes(shapes, split.encoded.lengths, **size)
    name = "demo" if config.data.train is None else config.data.train.name.split(".")[0]
    return Data(name, splits, encoder, scheme, shapes)


def _read_corpora(config: Config) -> dict[str, Corpus]:
    paths = {name: getattr(config.data, name) for name in SPLITS}
    if paths["train"] is None:
        if given := [name for name, path in paths.items() if path is not None]:
            raise ConfigError(f"data.{given[0]}: expected --data.train too; the demo has its own")
        return {name: corpus.conll_corpus(demo.sentences(name)) for name in SPLITS}
    train = corpus.read(paths["train"], config.data)
    return {
        name: train if name == "train" else corpus.read(path, config.data, like=train.layout)
        for name, path in paths.items()
        if path is not None
    }


def _describe(name: str, read_corpus: Corpus) -> str:
    place = "demo corpus" if read_corpus.path is None else str(read_corpus.path)
    return (
        f"{name}: {place}: {read_corpus.layout.describe()}; "
        f"{len(read_corpus.sentences):,} sentences, {read_corpus.token_count:,} tokens"
    )


def _encode_split(read_corpus: Corpus, encoder: Encoder) -> Split:
    gold = [sentence.tags or () for sentence in read_corpus.sentences]
    tokens = [sentence.tokens for sentence in read_corpus.sentences]
    return Split(read_corpus, gold, encode(tokens, gold, encoder))


def unseen(sentences: Iterable[Sequence[str]], known: Sequence[str]) -> list[str]:
    """Tags of the sentences that a model with the labels ``known`` can never predict, sorted."""
    return sorted({tag for tags in sentences for tag in tags} - set(known))


def unseen_warning(name: str, tags: Sequence[str]) -> str:
    """Say what becomes of the tags of a corpus that the model lacks."""
    return (
        f"{name} has labels that training lacked: {show(tags)}; they are never predicted, count "
        "as misses, and have no loss"
    )
