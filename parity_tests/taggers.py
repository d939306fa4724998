"""Seeds in; a tagger, data and a training, the same bits everywhere, and jaxtag's run of it out.

Nothing here needs torch, so that what is recorded of it can be checked where it is missing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from loss_cases import Worst, nearly_normal

from jaxtag import batch as batches
from jaxtag import checkpoint, device, losses, model, optim, plan, step
from jaxtag.config import ModelConfig, Parts, TrainConfig
from jaxtag.encode import PARTS, Encoded
from jaxtag.loss_scale import OFF, LossScaleConfig, find, loss_scaled
from jaxtag.precision import Policy

CLASSES, WORDS, AFFIXES = 9, 30_000, 500
BILSTM = ModelConfig(kind="bilstm", width=32, layers=1, dropout=0.0)
TRANSFORMER = ModelConfig(
    kind="transformer", width=32, layers=2, heads=4, feed_forward=64, dropout=0.0
)
# What is trained; and all that is compared layer by layer.
TRAINED = ("bilstm", "transformer")
MODELS: dict[str, tuple[ModelConfig, Parts]] = {
    "bilstm": (BILSTM, "affixes"),
    "transformer": (TRANSFORMER, "affixes"),
    "two bilstm layers on characters": (replace(BILSTM, layers=2), "characters"),
    "transformer on words": (TRANSFORMER, "none"),
}


# Begins so high that the first steps overflow, and grows often enough to overflow again.
SCALING = LossScaleConfig(init_scale=2.0**24, growth_interval=20)


def corpus(seed: int, sentences: int, kind: str = "bilstm") -> Encoded:
    """Sentences of 3 to 80 tokens from 30,000 words; the tag depends on the word, with noise."""
    width = PARTS[MODELS[kind][1]]
    words = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))
    lengths = 3 + words.random_raw(sentences) % 78
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = int(offsets[-1])
    ids = (2 + words.random_raw(tokens) % (WORDS - 2)).astype(np.int32)
    parts = words.random_raw(tokens * width) % AFFIXES
    parts = parts.reshape(tokens, width).astype(np.int32)
    noise = words.random_raw(tokens) % 10 == 0
    meant = parts[:, 0] if width else ids
    labels = np.where(noise, words.random_raw(tokens) % CLASSES, meant % CLASSES)
    return Encoded(ids, parts, labels.astype(np.int32), offsets)


def tagger(kind: str, policy: str = "float32") -> model.Model:
    """jaxtag's model."""
    config, parts = MODELS[kind]
    sizes = model.Sizes(words=WORDS, kind=parts, parts=AFFIXES, classes=CLASSES)
    return model.build(config, Policy(policy), sizes)


def start(kind: str, seed: int) -> dict[str, Any]:
    """The parameters that a training begins with, of about the sizes that are usual."""

    def leaf(path: Any, shape: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        values = nearly_normal([seed, zlib.crc32(name.encode())], shape.shape)
        if name.endswith("kernel"):
            values = values / np.sqrt(shape.shape[0])
        elif name.endswith("scale"):
            values = 1.0 + 0.1 * values
        else:
            values = 0.1 * values
        if name in ("embed.words", "embed.inside.table"):
            values[0] = 0.0  # padding
        return values.astype(np.float32)

    shapes = jax.eval_shape(tagger(kind).init, jax.random.key(0))
    return jax.tree_util.tree_map_with_path(leaf, shapes)


def first_batches(encoded: Encoded, count: int) -> Sequence[plan.Placement]:
    """So many batches of one shape."""
    shapes = plan.choose_shapes(encoded.lengths, shapes=1, batch_tokens=640)
    return plan.epoch_plan(shapes, encoded.lengths, seed=0).batches[:count]


def logits_and_gradients(
    kind: str, params: Any, encoded: Encoded, placements: Sequence[plan.Placement]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Of each batch: its tokens' logits, and the gradient of its mean loss, leaf by leaf."""
    network = tagger(kind)

    @jax.jit
    def program(params: Any, batch: batches.Batch) -> Any:
        def objective(params: Any) -> Any:
            logits_BLC = network.apply(params, batch)
            return losses.masked_token_loss(logits_BLC, batch.labels_BL).mean(), logits_BLC

        (_, logits_BLC), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return logits_BLC, grads

    for placement in placements:
        batch = batches.make_batch(encoded, placement)
        logits_BLC, grads = program(params, batch)
        yield np.asarray(logits_BLC)[batch.ids_BL != 0], checkpoint.flatten(grads)


@dataclass(frozen=True)
class Trained:
    """What a training gave, step by step."""

    losses: list[float]
    correct: list[int]
    close: list[list[int]]
    """Tokens whose two best logits lie within 1e-5, which may count otherwise elsewhere."""
    scales: list[float] = field(default_factory=list)
    """The loss scale after each step."""
    largest: list[float] = field(default_factory=list)
    """The largest scaled gradient of each step; inf where it overflowed."""


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


def train(
    kind: str,
    start: Any,
    encoded: Encoded,
    steps: Sequence[Sequence[plan.Placement]],
    policy: str = "float32",
) -> Trained:
    """jaxtag's own programs, on batches of two static shapes; float16 with SCALING."""
    config = settings(len(steps))
    schedule = optim.schedule(config, len(steps))
    scaling = SCALING if policy == "float16" else OFF
    optimizer = optim.build(config, schedule)
    recipe = step.Recipe(tagger(kind, policy), optimizer, schedule, scaling)
    devices = device.local_devices(8)
    programs = step.train_programs(recipe, devices)
    state = step.TrainState(start, loss_scaled(optimizer, scaling).init(start), np.int32(0))
    state = devices.replicate(state)
    sums, scales, largest = [], [], []
    for placements in steps:
        micro = [batches.make_batch(encoded, placement) for placement in placements]
        count = np.float32(sum((batch.labels_BL != -100).sum() for batch in micro))
        gradient = programs.zeros(state.params)
        for number, batch in enumerate(micro):
            gradient, found = programs.accumulate(
                state, gradient, devices.shard(batch), count, np.int32(number)
            )
            sums.append(found)
        largest.append(_largest(gradient) if policy == "float16" else 0.0)
        state = programs.apply(state, gradient, count)
        scales.append(jnp.copy(find(state.opt_state).scale))  # the state is donated
    fetched = iter(jax.device_get(sums))
    scales, largest = (list(map(float, jax.device_get(one))) for one in (scales, largest))
    trained = Trained([], [], [], scales, largest)
    for placements in steps:
        parts = [next(fetched) for _ in placements]
        count = sum(int(part.loss.count) for part in parts)
        trained.losses.append(sum(float(part.loss.total) for part in parts) / count)
        trained.correct.append(sum(int(part.tokens.correct) for part in parts))
    return trained


@jax.jit
def _largest(gradient: Any) -> Any:
    return jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gradient)]).max()


def agree_at_every_step(worst: Worst, name: str, ours: Trained, theirs: Trained) -> None:
    """See losses and counts of two trainings, step by step."""
    losses = np.array(theirs.losses)
    gaps = np.abs(ours.losses - losses) / losses
    worst.see("11a", gaps.max(), f"{name}, step {gaps.argmax() + 1}", len(losses))
    differ = np.abs(np.array(ours.correct) - theirs.correct)
    ties = [f"step {step + 1}: tokens {theirs.close[step]}" for step in np.flatnonzero(differ)]
    beyond = sum(max(0, d - len(c)) for d, c in zip(differ, theirs.close, strict=True))
    worst.see("11b", beyond, f"{name}, counts apart at {'; '.join(ties) or 'no step'}", len(losses))
