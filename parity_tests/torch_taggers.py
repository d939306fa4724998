"""The same tagger and training in the reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import taggers
import torch
import weights
from tolerances import CLOSE_LOGITS
from torch.amp.grad_scaler import GradScaler

from jaxtag import checkpoint, plan
from jaxtag.encode import Encoded
from torch_ref import losses, optim, step
from torch_ref.batch import Batch, Sentences, collate
from torch_ref.model import Tagger
from torch_ref.precision import Policy

FLOAT32 = Policy()
# One thread: on small tensors more of them only wait for each other.
torch.set_num_threads(1)


def tagger(
    kind: str, params: Any, dtype: torch.dtype = torch.float32, policy: Policy = FLOAT32
) -> Tagger:
    """A tagger of torch_ref with these parameters of jaxtag's."""
    config, parts = taggers.MODELS[kind]
    found = Tagger(
        config,
        words=taggers.WORDS,
        kind=parts,
        parts=taggers.AFFIXES,
        classes=taggers.CLASSES,
        policy=policy,
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
        losses.masked_token_loss(logits.float(), examples.labels).mean().backward()
        named = {name: p.grad for name, p in tagger.named_parameters() if p.grad is not None}
        yield (
            logits.detach().float()[examples.mask].numpy(),
            checkpoint.flatten(weights.to_jax(named)),
        )


def moments(tagger: Tagger, optimizer: torch.optim.Optimizer) -> tuple[Any, Any, int]:
    """Both moments by parameter name, and the number of steps; none before the first."""
    names = {id(p): name for name, p in tagger.named_parameters()}
    held = {names[id(p)]: {k: v.clone() for k, v in s.items()} for p, s in optimizer.state.items()}
    mu, nu = ({n: s[key] for n, s in held.items()} for key in ("exp_avg", "exp_avg_sq"))
    counts = {int(s["step"]) for s in held.values()}
    return mu, nu, max(counts, default=0)


def train(
    tagger: Tagger,
    encoded: Encoded,
    steps: Sequence[Sequence[plan.Placement]],
    skipped: Collection[int] = (),
) -> taggers.Trained:
    """``torch_ref.step.train_step`` on batches padded to their longest sentence.

    At ``skipped`` steps the optimizer and the schedule stand still, as after an overflow.
    """
    config = taggers.settings(len(steps))
    optimizer, schedule = optim.build(tagger, config, len(steps))
    scaler = GradScaler(
        "cpu",
        init_scale=taggers.SCALING.init_scale,
        growth_interval=taggers.SCALING.growth_interval or 0,
        enabled=tagger.policy.name == "float16",
    )
    sentences, trained = Sentences(encoded), taggers.Trained([], [], [])
    logits: list[torch.Tensor] = []
    tagger.register_forward_hook(lambda module, inputs, output: logits.append(output.detach()))
    for number, placements in enumerate(steps):
        micro = [batch(sentences, placement) for placement in placements]
        logits.clear()
        if number in skipped:
            loss, counts, _ = step.evaluate(tagger, micro)
            correct = counts.correct
        else:
            loss, correct = step.train_step(
                tagger, optimizer, schedule, micro, clip_norm=config.clip_norm, scaler=scaler
            )
        close = []
        for placement, examples, found in zip(placements, micro, logits, strict=True):
            best = found.float()[examples.mask].topk(2, dim=-1).values
            is_close = best[:, 0] - best[:, 1] < CLOSE_LOGITS
            close += tokens_of(encoded, placement)[is_close].tolist()
        trained.losses.append(loss)
        trained.correct.append(correct)
        trained.close.append(close)
        trained.scales.append(scaler.get_scale())
    return trained


def tokens_of(encoded: Encoded, placement: plan.Placement) -> np.ndarray:
    """Where in the corpus the tokens of a batch stand, in the order of its cells."""
    spans = [slice(*encoded.offsets[index : index + 2]) for index in placement.sentences]
    return np.concatenate([np.arange(span.start, span.stop) for span in spans])
