"""``python -m torch_ref.train``: the same training in plain PyTorch, with the same main flags.

Initial weights are those of PyTorch's layers; equal steps from equal weights are what the parity
tests hold jaxtag to.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from jaxtag import config, corpus, demo, encode, labels
from torch_ref import metrics, optim, step
from torch_ref.batch import Batch, Example, Sentences, SortedMegaBatches, collate
from torch_ref.model import Tagger
from torch_ref.precision import Policy

Sampler = Literal["shuffled", "sorted"]
Casts = Literal["autocast", "explicit"]

ONLY_JAXTAG = (
    *("run", "resume", "overwrite", "data.shapes", "data.row_multiple"),
    *("train.eval_steps", "train.log_steps", "precision.loss_scale", "precision.min_scale"),
    *("precision.max_scale", "precision.max_skips", "precision.report_every"),
    "precision.scale_anyway",
)
SPLITS: tuple[demo.Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class TorchConfig(config.Config):
    """Train the reference tagger: ``python -m torch_ref.train --data.train FILE``."""

    sampler: Sampler = "shuffled"
    """shuffled: random batches; sorted: by length within shuffled mega-batches of 50."""
    casts: Casts = "autocast"
    """How 16 bits are reached: torch.autocast, or casts where jaxtag has them."""


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


def build_model(settings: TorchConfig, encoder: encode.Encoder) -> Tagger:
    """The tagger that the settings and the encoder's sizes determine."""
    return Tagger(
        settings.model,
        words=encoder.vocabulary_size,
        kind=encoder.kind,
        parts=len(encoder.parts) + 1,
        classes=len(encoder.labels),
        policy=Policy(settings.precision.policy, settings.casts),
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


def batches_for_training(
    settings: TorchConfig, sentences: Sentences, size: int
) -> DataLoader[Example]:
    """Batches in another order each epoch; the last, smaller one is kept."""
    if settings.sampler == "sorted":
        sampler = SortedMegaBatches(sentences.lengths, size, settings.train.seed)
        return DataLoader(sentences, batch_sampler=sampler, collate_fn=collate)
    order = torch.Generator().manual_seed(settings.train.seed)
    return DataLoader(sentences, batch_size=size, shuffle=True, generator=order, collate_fn=collate)


def train_epoch(
    settings: TorchConfig,
    model: Tagger,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    batches: Iterable[Batch],
    options: step.LossOptions,
    scaler: GradScaler,
    steps: int,
) -> tuple[int, str]:
    """At most ``steps`` optimizer steps; how many there were, and a line about them."""
    started, done, tokens, cells, loss = time.perf_counter(), 0, 0, 0, 0.0
    batches = iter(batches)
    while done < steps and (group := list(itertools.islice(batches, settings.train.accumulate))):
        loss, _ = step.train_step(
            model, optimizer, scheduler, group, options, settings.train.clip_norm, scaler
        )
        done += 1
        tokens += sum(int(batch.mask.sum()) for batch in group)
        cells += sum(batch.ids.numel() for batch in group)
    rate = tokens / (time.perf_counter() - started)
    return done, f"loss {loss:.4f} {rate:,.0f} tokens/s {tokens / max(1, cells):.0%} real"


def train(settings: TorchConfig) -> None:
    """Train, score dev after each epoch, and test the best model at the end."""
    refuse_what_is_missing(settings)
    torch.manual_seed(settings.train.seed)
    data = read(settings)
    size = batch_size(settings, data.sentences["train"])
    loader = batches_for_training(settings, data.sentences["train"], size)
    steps = -(-len(loader) // settings.train.accumulate) * settings.train.epochs
    steps = min(steps, settings.train.max_steps or steps)
    model = build_model(settings, data.encoder)
    optimizer, scheduler = optim.build(model, settings.train, steps)
    weights = encode.class_weights(settings.train.class_weights, data.encoder.labels)
    options = step.LossOptions(
        None if weights is None else torch.from_numpy(weights), settings.train.label_smoothing
    )
    scaler = GradScaler(
        "cpu",
        init_scale=settings.precision.init_scale,
        growth_interval=settings.precision.growth_interval,
        enabled=settings.precision.policy == "float16",
    )
    best_score, best_state, best_epoch, done = -1.0, model.state_dict(), 0, 0
    for epoch in range(1, settings.train.epochs + 1):
        taken, line = train_epoch(
            settings, model, optimizer, scheduler, loader, options, scaler, steps - done
        )
        done += taken
        if "dev" in data.sentences:
            dev_loss, accuracy, entities = score(model, data, "dev", size)
            found = entities.get("f1", accuracy)
            line += f" | dev loss {dev_loss:.4f} accuracy {accuracy:.4f} score {found:.4f}"
            if found > best_score or not best_score:
                best_score, best_epoch = found, epoch
                best_state = {k: v.clone() for k, v in model.state_dict().items()}
        print(f"epoch {epoch} step {done:,} {line}", flush=True)
        out_of_patience = 0 < settings.train.patience <= epoch - best_epoch
        if done == steps or ("dev" in data.sentences and out_of_patience):
            break
    if "dev" in data.sentences:
        model.load_state_dict(best_state)
    if "test" in data.sentences:
        loss, accuracy, entities = score(model, data, "test", size)
        print(f"test loss {loss:.4f} accuracy {accuracy:.4f} {entities}")


def refuse_what_is_missing(settings: TorchConfig) -> None:
    """Flags of jaxtag that have no meaning here are mistakes, not silently ignored."""
    plain = config.Config()
    if settings.data.train is None and (settings.data.dev or settings.data.test):
        raise config.ConfigError(
            "data.train: expected a training file beside data.dev or data.test, found none"
        )
    for name in ONLY_JAXTAG:
        group, _, field = name.rpartition(".")
        given, default = (getattr(one, group) if group else one for one in (settings, plain))
        if getattr(given, field) != getattr(default, field):
            raise config.ConfigError(
                f"{name.replace('_', '-')}: the reference has no such setting; leave it out"
            )


def main(argv: Sequence[str]) -> None:
    """Parse the flags, then train."""
    train(config.parse(TorchConfig, argv, prog="torch_ref.train"))


if __name__ == "__main__":
    config.run_command(main)
