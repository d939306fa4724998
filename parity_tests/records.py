"""What torch said of the shared fixtures, bit for bit, for where torch is not installed."""

from __future__ import annotations

from pathlib import Path

import adamw_cases
import numpy as np
import report
import scaler_cases
import taggers
from loss_cases import OPTIONS, class_weights, draw
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from jaxtag.encode import Encoded

FIXTURES = Path(__file__).parent / "fixtures"

# Losses: hard logits and labels; torch's losses, gradients and counts.

LOSS_ROWS = 128
LOSS_CLASSES = (2, 9, 33, 64)


def derive_losses():
    import torch
    from torch_losses import torch_loss_and_gradient

    from torch_ref.metrics import token_counts

    arrays = {}
    for num_classes in LOSS_CLASSES:
        logits_BLC, labels_BL = draw(num_classes, LOSS_ROWS, num_classes)
        arrays[f"{num_classes}/logits"], arrays[f"{num_classes}/labels"] = logits_BLC, labels_BL
        counts = token_counts(torch.tensor(logits_BLC), torch.tensor(labels_BL))
        arrays[f"{num_classes}/counts"] = np.int64(counts)
        for option, (_, smoothing) in OPTIONS.items():
            loss_BL, grad_BLC = torch_loss_and_gradient(
                logits_BLC, labels_BL, class_weights(num_classes, option), smoothing
            )
            arrays[f"{num_classes}/{option}/loss"] = loss_BL
            arrays[f"{num_classes}/{option}/gradient"] = grad_BLC
    return arrays


# AdamW: the gradients come from their seed; torch's parameters and moments after all of them.


def derive_adamw():
    import torch_adamw

    arrays = {}
    for seed, name in enumerate(adamw_cases.SETTINGS):
        params, grads = adamw_cases.tensors(seed)
        # Not the whole stream, 3 MB: enough of it to see that the seed still gives it.
        arrays |= {f"{name}/first gradient/{leaf}": grads[leaf][0] for leaf in grads}
        found = torch_adamw.trained(
            params, grads, adamw_cases.SETTINGS[name], has_schedule=name == "schedule"
        )
        for part, tree in zip(("params", "mu", "nu"), found, strict=True):
            arrays |= {f"{name}/{part}/{leaf}": value for leaf, value in tree.items()}
    return arrays


# Taggers: sentences of 3 to 80 ids of 30,000 with tags 0 to 8; torch's logits and gradients of
# the first batches, and its losses and counts of 100 training steps. Weights come from their seed.

SENTENCES, BATCHES, STEPS, SEED = 240, 2, 100, 0


def derive_taggers():
    import torch_taggers

    encoded = taggers.corpus(SEED, SENTENCES)
    arrays = {
        "ids": encoded.ids,
        "parts": encoded.parts.astype(np.uint16),
        "labels": encoded.labels.astype(np.uint8),
        "offsets": encoded.offsets,
    }
    placements = taggers.first_batches(encoded, BATCHES)
    groups = taggers.groups(encoded, STEPS, SEED)
    for kind in taggers.TRAINED:
        start = taggers.start(kind, SEED)
        tagger = torch_taggers.tagger(kind, start)
        found = torch_taggers.logits_and_gradients(tagger, encoded, placements)
        for number, (logits, gradients) in enumerate(found):
            arrays[f"{kind}/{number}/logits"] = logits
            leaves = with_fewer_rows(gradients)
            arrays |= {f"{kind}/{number}/gradient/{leaf}": leaves[leaf] for leaf in leaves}
        trained = torch_taggers.train(torch_taggers.tagger(kind, start), encoded, groups)
        arrays[f"{kind}/training/losses"] = np.float64(trained.losses)
        arrays[f"{kind}/training/correct"] = np.int64(trained.correct)
        steps = [np.full(len(tokens), step) for step, tokens in enumerate(trained.close)]
        close = np.concatenate([*steps, []]), np.concatenate([*trained.close, []])
        arrays[f"{kind}/training/close"] = np.int64(close)
    return arrays


def with_fewer_rows(gradients):
    """Gradients without those rows of the 30,000 words' that are 0: the batch has other words."""
    words = gradients["embed.words"]
    return gradients | {"embed.words": words[np.any(words, axis=1)]}


def encoded_of(arrays):
    """The recorded sentences."""
    parts, labels = arrays["parts"].astype(np.int32), arrays["labels"].astype(np.int32)
    return Encoded(arrays["ids"], parts, labels, arrays["offsets"])


def trained_of(arrays, kind):
    """The recorded training."""
    steps, tokens = arrays[f"{kind}/training/close"]
    losses, correct = (arrays[f"{kind}/training/{what}"] for what in ("losses", "correct"))
    close = [tokens[steps == step].tolist() for step in range(len(losses))]
    return taggers.Trained(losses.tolist(), correct.tolist(), close)


# Loss scaling: torch's scale, tracker and decisions over streams that come from their seeds.


def derive_scaler():
    import torch_scaler

    arrays = {}
    for case in scaler_cases.RECORDED:
        events = case.events()[scaler_cases.RECORDED_STREAMS]
        arrays[f"{case.number}/events"] = events.astype(np.uint8)
        found = torch_scaler.trajectories(case, events)
        arrays[f"{case.number}/scale"] = found["scale"]
        arrays[f"{case.number}/tracker"] = found["tracker"].astype(np.uint16)
        arrays[f"{case.number}/taken"] = found["taken"]
    return arrays


DERIVE = {
    "scaler": derive_scaler,
    "losses": derive_losses,
    "adamw": derive_adamw,
    "taggers": derive_taggers,
}


def origin():
    """Which torch on which processor: another one may add in another order."""
    import torch

    vectors = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "vectors": vectors, "processor": report.processor()}


def recorded_origin(name):
    """The same of the record."""
    with safe_open(FIXTURES / f"{name}.safetensors", "np") as file:
        return file.metadata()


def load(name):
    """The recorded arrays, by name."""
    return load_file(FIXTURES / f"{name}.safetensors")


def write():
    """Record anew."""
    FIXTURES.mkdir(exist_ok=True)
    for name, derive in DERIVE.items():
        arrays = {key: np.ascontiguousarray(array) for key, array in derive().items()}
        save_file(arrays, FIXTURES / f"{name}.safetensors", metadata=origin())
