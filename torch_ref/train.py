"""``python -m torch_ref.train``: the same training with the same flags, in plain PyTorch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from jaxtag import config, corpus, demo, encode, labels
from torch_ref import metrics, optim, step
from torch_ref.batch import Batch, Sentences, ShuffledBatches, SortedMegaBatches, collate
from torch_ref.model import Tagger

Sampler = Literal["shuffled", "sorted"]

SPLITS: tuple[demo.Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class TorchConfig(config.Config):
    """Train the reference tagger: ``python -m torch_ref.train --data.train FILE``."""

    sampler: Sampler = "shuffled"
    """shuffled: random batches; sorted: by length within shuffled mega-batches of 50."""


@dataclass(frozen=True)
class Data:
    """The splits by name, and what their ids mean."""

    encoder: encode.Encoder
    scheme: str
    gold: dict[demo.Split, list[Sequence[str]]]
    sentences: dict[demo.Split, Sentences]


def read(settings: config.Config) -> Data:
    """Read the corpora; vocabulary and labels come from the training one."""
    paths = {name: getattr(settings.data, name) for name in SPLITS}
    corpora: dict[demo.Split, corpus.Corpus]
    if paths["train"] is None:
        corpora = {name: corpus.conll_corpus(demo.sentences(name)) for name in SPLITS}
    else:
        train = corpus.read(paths["train"], settings.data)
        corpora = {"train": train}
        for name, path in paths.items():
            if path is not None and name != "train":
                corpora[name] = corpus.read(path, settings.data, like=train.layout)
    tokens = {name: [s.tokens for s in c.sentences] for name, c in corpora.items()}
    tags = {name: [s.tags or () for s in c.sentences] for name, c in corpora.items()}
    scheme = settings.data.scheme
    found = labels.detect_scheme(tags["train"]) if scheme == "auto" else scheme
    label_list = labels.complete_labels(itertools.chain.from_iterable(tags["train"]), found)
    encoder = encode.build_encoder(tokens["train"], label_list, settings.encode)
    sentences = {n: Sentences(encode.encode(tokens[n], tags[n], encoder)) for n in corpora}
    gold: dict[demo.Split, list[Sequence[str]]] = {n: [r for r in tags[n] if r] for n in corpora}
    return Data(encoder, found, gold, sentences)


def build_model(settings: config.Config, encoder: encode.Encoder) -> Tagger:
    """The tagger that the settings and the encoder's sizes determine."""
    return Tagger(
        settings.model,
        words=encoder.vocabulary_size,
        kind=encoder.kind,
        parts=len(encoder.parts) + 1,
        classes=len(encoder.labels),
    )


def batch_size(settings: config.Config, sentences: Sentences) -> int:
    """Sentences a batch: as many of mean length as hold ``batch_tokens`` tokens."""
    mean = sum(sentences.lengths) / len(sentences)
    return max(1, round(settings.train.batch_tokens / mean))


def evaluation_batches(sentences: Sentences, size: int) -> Iterable[Batch]:
    """All sentences, in order."""
    return DataLoader(sentences, batch_size=size, collate_fn=collate)


def score(
    model: Tagger, data: Data, name: demo.Split, size: int
) -> tuple[float, float, dict[str, float]]:
    """Loss, accuracy and entity scores of a split."""
    batches = evaluation_batches(data.sentences[name], size)
    loss, counts, rows = step.evaluate(model, batches)
    predicted = [[data.encoder.labels[label] for label in row] for row in rows]
    gold = data.gold[name]
    tokens = sum(len(row) for row in gold)  # a tag that training lacks is a token missed
    entities = {} if data.scheme == "plain" else metrics.entity_scores(gold, predicted)
    return loss, counts.correct / tokens, entities


def class_weights(settings: config.Config, label_list: Sequence[str]) -> Tensor | None:
    """Weights of the classes in the labels' order; None where none is given."""
    given = dict(item.rsplit("=", 1) for item in settings.train.class_weights)
    if not given:
        return None
    return torch.tensor([float(given.get(label, 1.0)) for label in label_list])


def train(settings: TorchConfig) -> None:
    """Train, score dev after each epoch, and test the best model at the end."""
    torch.manual_seed(settings.train.seed)
    data = read(settings)
    sentences = data.sentences["train"]
    size = batch_size(settings, sentences)
    if settings.sampler == "sorted":
        sampler: ShuffledBatches | SortedMegaBatches = SortedMegaBatches(
            sentences.lengths, size, settings.train.seed
        )
    else:
        sampler = ShuffledBatches(len(sentences), size, settings.train.seed)
    loader = DataLoader(sentences, batch_sampler=sampler, collate_fn=collate)
    steps = -(-len(loader) // settings.train.accumulate) * settings.train.epochs
    steps = min(steps, settings.train.max_steps or steps)
    model = build_model(settings, data.encoder)
    optimizer, scheduler = optim.build(model, settings.train, steps)
    options = step.LossOptions(
        class_weights(settings, data.encoder.labels), settings.train.label_smoothing
    )
    best_score, best_state, done = -1.0, model.state_dict(), 0
    for epoch in range(settings.train.epochs):
        started, tokens, cells = time.perf_counter(), 0, 0
        batches = iter(loader)
        while done < steps and (
            group := list(itertools.islice(batches, settings.train.accumulate))
        ):
            loss, _ = step.train_step(
                model, optimizer, scheduler, group, options, settings.train.clip_norm
            )
            done += 1
            tokens += sum(int(batch.mask.sum()) for batch in group)
            cells += sum(batch.ids.numel() for batch in group)
        rate = tokens / (time.perf_counter() - started)
        line = f"epoch {epoch + 1} step {done:,} loss {loss:.4f} {rate:,.0f} tokens/s"
        line += f" {tokens / max(1, cells):.0%} real"
        if "dev" in data.sentences:
            dev_loss, accuracy, entities = score(model, data, "dev", size)
            found = entities.get("f1", accuracy)
            line += f" | dev loss {dev_loss:.4f} accuracy {accuracy:.4f} score {found:.4f}"
            if found > best_score:
                best_score = found
                best_state = {k: v.clone() for k, v in model.state_dict().items()}
        print(line, flush=True)
        if done == steps:
            break
    if "dev" in data.sentences:
        model.load_state_dict(best_state)
    if "test" in data.sentences:
        loss, accuracy, entities = score(model, data, "test", size)
        print(f"test loss {loss:.4f} accuracy {accuracy:.4f} {entities}")


def main(argv: Sequence[str]) -> None:
    """Parse the flags, then train."""
    train(config.parse(TorchConfig, argv, prog="torch_ref.train"))


if __name__ == "__main__":
    config.run_command(main)
