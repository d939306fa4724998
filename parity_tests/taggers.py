"""The same tagger, data and training on both sides, for the parity tests of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from jaxtag import batch as batches
from jaxtag import device, model, optim, plan, step
from jaxtag.config import ModelConfig, TrainConfig
from jaxtag.encode import PARTS, Encoded
from jaxtag.precision import Policy
from torch_ref import losses as torch_losses
from torch_ref import metrics as torch_metrics
from torch_ref import optim as torch_optim
from torch_ref.batch import Sentences, collate
from torch_ref.model import Tagger

# One thread: on small tensors more of them only wait for each other.
torch.set_num_threads(1)

CLASSES, WORDS, AFFIXES = 9, 30_000, 500
MODELS = {
    "bilstm": ModelConfig(kind="bilstm", width=32, layers=1, dropout=0.0),
    "transformer": ModelConfig(
        kind="transformer", width=32, layers=2, heads=4, feed_forward=64, dropout=0.0
    ),
}


def corpus(seed: int, sentences: int) -> Encoded:
    """Sentences of 3 to 80 tokens from 30,000 words; the tag depends on the word, with noise."""
    words = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))
    lengths = 3 + words.random_raw(sentences) % 78
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = int(offsets[-1])
    ids = (2 + words.random_raw(tokens) % (WORDS - 2)).astype(np.int32)
    parts = words.random_raw(tokens * PARTS["affixes"]) % AFFIXES
    parts = parts.reshape(tokens, -1).astype(np.int32)
    noise = words.random_raw(tokens) % 10 == 0
    labels = np.where(noise, words.random_raw(tokens) % CLASSES, parts[:, 0] % CLASSES)
    return Encoded(ids, parts, labels.astype(np.int32), offsets)


def torch_tagger(kind: str, seed: int) -> Tagger:
    """A tagger of torch_ref with its own initial weights, embeddings made small."""
    torch.manual_seed(seed)
    tagger = Tagger(MODELS[kind], words=WORDS, kind="affixes", parts=AFFIXES, classes=CLASSES)
    with torch.no_grad():
        tagger.embed.words.weight.mul_(0.1)
        tagger.embed.inside.table.weight.mul_(0.1)  # type: ignore[union-attr, operator]
    return tagger


def jax_tagger(kind: str) -> model.Model:
    """jaxtag's model of the same settings; its weights come from torch_ref's."""
    sizes = model.Sizes(words=WORDS, kind="affixes", parts=AFFIXES, classes=CLASSES)
    return model.build(MODELS[kind], Policy("float32"), sizes)


def torch_batch(encoded: Encoded, placement: plan.Placement) -> Any:
    """The placement's sentences, padded to the longest of them."""
    sentences = Sentences(encoded)
    return collate([sentences[int(index)] for index in placement.sentences])


@dataclass(frozen=True)
class Trained:
    """What a training gave, step by step."""

    losses: list[float]
    correct: list[int]
    close: list[int]
    """Tokens whose two best logits lie within 1e-5, whose count may differ."""


def settings(steps: int) -> TrainConfig:
    """Clipping that bites, warm-up and decay, two micro-batches a step."""
    return TrainConfig(epochs=1, lr=2e-3, accumulate=2, warmup=0.1, clip_norm=0.5, max_steps=steps)


def groups(encoded: Encoded, steps: int, seed: int) -> list[Sequence[plan.Placement]]:
    """The micro-batches of each step, epoch after epoch."""
    shapes = plan.choose_shapes(encoded.lengths, shapes=2, batch_tokens=640)
    found: list[Sequence[plan.Placement]] = []
    epoch = 0
    while len(found) < steps:
        placed = plan.epoch_plan(shapes, encoded.lengths, seed=seed, epoch=epoch).batches
        found += [placed[start : start + 2] for start in range(0, len(placed), 2)]
        epoch += 1
    return found[:steps]


def train_torch(
    tagger: Tagger, encoded: Encoded, steps: Sequence[Sequence[plan.Placement]]
) -> Trained:
    """The loop of torch_ref.step, on batches padded to their longest sentence."""
    config = settings(len(steps))
    optimizer, schedule = torch_optim.build(tagger, config, len(steps))
    trained = Trained([], [], [])
    for placements in steps:
        micro = [torch_batch(encoded, placement) for placement in placements]
        count = sum(torch_losses.loss_count(batch.labels) for batch in micro)
        optimizer.zero_grad()
        total, correct, close = 0.0, 0, 0
        for batch in micro:
            logits = tagger(batch)
            loss = torch_losses.masked_token_loss(logits, batch.labels)
            (loss.total / count).backward()
            total += float(loss.total.detach())
            correct += torch_metrics.token_counts(logits, batch.labels).correct
            best = logits.detach()[batch.mask].topk(2, dim=-1).values
            close += int((best[:, 0] - best[:, 1] < 1e-5).sum())
        clip_grad_norm_(tagger.parameters(), config.clip_norm)
        optimizer.step()
        schedule.step()
        trained.losses.append(total / float(count))
        trained.correct.append(correct)
        trained.close.append(close)
    return trained


def train_jax(
    kind: str, start: Any, encoded: Encoded, steps: Sequence[Sequence[plan.Placement]]
) -> Trained:
    """jaxtag's own programs, on batches of three static shapes."""
    config = settings(len(steps))
    schedule = optim.schedule(config, len(steps))
    recipe = step.Recipe(jax_tagger(kind), optim.build(config, schedule), schedule)
    devices = device.local_devices(8)
    programs = step.train_programs(recipe, devices)
    state = step.TrainState(start, recipe.optimizer.init(start), np.int32(0))
    state = devices.replicate(state)
    sums = []
    for placements in steps:
        micro = [batches.make_batch(encoded, placement) for placement in placements]
        count = np.float32(sum((batch.labels_BL != -100).sum() for batch in micro))
        gradient = programs.zeros(state.params)
        for number, batch in enumerate(micro):
            gradient, found = programs.accumulate(
                state, gradient, devices.shard(batch), count, np.int32(number)
            )
            sums.append(found)
        state = programs.apply(state, gradient, count)
    fetched = iter(jax.device_get(sums))
    trained = Trained([], [], [])
    for placements in steps:
        parts = [next(fetched) for _ in placements]
        count = sum(int(part.loss.count) for part in parts)
        trained.losses.append(sum(float(part.loss.total) for part in parts) / count)
        trained.correct.append(sum(int(part.tokens.correct) for part in parts))
    return trained


def double(tagger: Tagger, kind: str) -> Tagger:
    """A float64 copy."""
    copy = Tagger(MODELS[kind], words=WORDS, kind="affixes", parts=AFFIXES, classes=CLASSES)
    copy = copy.double()
    copy.load_state_dict({k: v.double() for k, v in tagger.state_dict().items()})
    return copy
