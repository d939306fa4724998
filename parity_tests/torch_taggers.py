"""The same tagger and training in the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import taggers
import torch
import weights
from torch.nn.utils import clip_grad_norm_

from jaxtag import checkpoint, plan
from jaxtag.encode import Encoded
from torch_ref import losses, metrics, optim
from torch_ref.batch import Batch, Sentences, collate
from torch_ref.model import Tagger

# One thread: on small tensors more of them only wait for each other.
torch.set_num_threads(1)


def tagger(kind: str, params: Any, dtype: torch.dtype = torch.float32) -> Tagger:
    """A tagger of torch_ref with these parameters of jaxtag's."""
    found = Tagger(
        taggers.MODELS[kind],
        words=taggers.WORDS,
        kind="affixes",
        parts=taggers.AFFIXES,
        classes=taggers.CLASSES,
    )
    found.load_state_dict(weights.to_torch(params, like=found.state_dict()))
    return found.to(dtype)


def batch(sentences: Sentences, placement: plan.Placement) -> Batch:
    """The placement's sentences, padded to the longest of them."""
    return collate([sentences[int(index)] for index in placement.sentences])


def logits_and_gradients(
    tagger: Tagger, encoded: Encoded, placements: Sequence[plan.Placement]
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Of each batch: its tokens' logits, and the gradient of its mean loss, by jaxtag's names."""
    sentences = Sentences(encoded)
    for placement in placements:
        examples = batch(sentences, placement)
        tagger.zero_grad()
        logits = tagger(examples)
        losses.masked_token_loss(logits, examples.labels).mean().backward()
        named = {name: p.grad for name, p in tagger.named_parameters() if p.grad is not None}
        yield (
            logits.detach()[examples.mask].numpy(),
            checkpoint.flatten(weights.to_jax(named)),
        )


def train(
    tagger: Tagger, encoded: Encoded, steps: Sequence[Sequence[plan.Placement]]
) -> taggers.Trained:
    """The loop of torch_ref.step, on batches padded to their longest sentence."""
    config = taggers.settings(len(steps))
    optimizer, schedule = optim.build(tagger, config, len(steps))
    sentences, trained = Sentences(encoded), taggers.Trained([], [], [])
    for placements in steps:
        micro = [batch(sentences, placement) for placement in placements]
        count = sum(losses.loss_count(examples.labels) for examples in micro)
        optimizer.zero_grad()
        total, correct, close = 0.0, 0, []
        for placement, examples in zip(placements, micro, strict=True):
            logits = tagger(examples)
            loss = losses.masked_token_loss(logits, examples.labels)
            (loss.total / count).backward()
            total += float(loss.total.detach())
            correct += metrics.token_counts(logits, examples.labels).correct
            best = logits.detach()[examples.mask].topk(2, dim=-1).values
            close += tokens_of(encoded, placement)[best[:, 0] - best[:, 1] < 1e-5].tolist()
        clip_grad_norm_(tagger.parameters(), config.clip_norm)
        optimizer.step()
        schedule.step()
        trained.losses.append(total / float(count))
        trained.correct.append(correct)
        trained.close.append(close)
    return trained


def tokens_of(encoded: Encoded, placement: plan.Placement) -> np.ndarray:
    """Where in the corpus the tokens of a batch stand, in the order of its cells."""
    spans = [slice(*encoded.offsets[index : index + 2]) for index in placement.sentences]
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])
