"""Any split into micro-batches or devices: the same loss, the same gradient.

Run as a program, this file measures the splits over fake devices.
"""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from distances import relative_distance, ulps
from loss_cases import Worst, class_weights
from processes import printed_by

from jaxtag import step
from jaxtag.batch import Batch
from jaxtag.device import local_devices
from jaxtag.losses import LossSum, loss_count
from jaxtag.model import Model

pytestmark = pytest.mark.parity

B, L, C, WORDS = 16, 12, 9, 40
SPLITS = 300
DEVICES = (1, 2, 4, 8)
BATCHES = 25
OPTIONS = {"plain": (False, 0.0), "weights and smoothing": (True, 0.1)}


def example(seed, ignored_rows=()):
    """A table of logits, a row for each word, and a batch of words and labels, a third ignored."""
    rng = np.random.default_rng(seed)
    table_VC = rng.normal(0.0, 3.0, (WORDS, C)).astype(np.float32)
    ids_BL = rng.integers(0, WORDS, (B, L)).astype(np.int32)
    labels_BL = rng.integers(0, C, (B, L)).astype(np.int32)
    labels_BL[rng.random((B, L)) < 1 / 3] = -100
    labels_BL[list(ignored_rows)] = -100
    return table_VC, ids_BL, labels_BL


def loss_and_gradient(option):
    """jaxtag's step: the sums of a batch, and its part of the gradient of the whole step's mean."""
    weights_C, smoothing = class_weights(C, option), OPTIONS[option][1]
    table = Model(
        init=lambda key: {"table": jnp.zeros((WORDS, C))},
        apply=lambda params, batch, key: params["table"][batch.ids_BL],
    )
    recipe = step.Recipe(
        table,
        optax.identity(),
        optax.constant_schedule(0.0),
        class_weights_C=weights_C,
        label_smoothing=smoothing,
    )

    def program(table_VC, ids_BL, labels_BL, step_count):
        places_BL = jnp.zeros_like(ids_BL)
        parts_BLW = jnp.zeros((*ids_BL.shape, 0), jnp.int32)
        batch = Batch(ids_BL, parts_BLW, labels_BL, places_BL, places_BL)
        gradient, sums = step.gradient(recipe, {"table": table_VC}, batch, step_count, None)
        return sums.loss, gradient["table"]

    return program


def step_count_of(labels_BL, option):
    weights_C = class_weights(C, option)
    weights_C = None if weights_C is None else jnp.array(weights_C)
    return np.float32(loss_count(jnp.array(labels_BL), weights_C))


def partition(rng):
    """Rows of each part of a batch; now and then a part has none."""
    part_of = rng.integers(0, rng.integers(2, 7), B)
    return [np.flatnonzero(part_of == part) for part in range(part_of.max() + 1)]


def micro_batch(rows, ids_BL, labels_BL):
    """These rows first, then ignored ones up to the next of three sizes."""
    size = next(size for size in (4, 8, B) if size >= len(rows))
    part_ids_BL = np.full((size, L), WORDS - 1, np.int32)
    part_labels_BL = np.full((size, L), -100, np.int32)
    part_ids_BL[: len(rows)], part_labels_BL[: len(rows)] = ids_BL[rows], labels_BL[rows]
    return part_ids_BL, part_labels_BL


@pytest.mark.parametrize("option", OPTIONS)
def test_any_split_into_micro_batches_has_the_loss_and_gradient_of_the_whole(parity, option):
    program, worst = jax.jit(loss_and_gradient(option)), Worst(parity)
    for seed in range(SPLITS):
        parts = partition(np.random.default_rng([seed, 1]))
        # Every third batch has a part without a label, and it is not always the same one.
        ignored = parts[seed % len(parts)] if seed % 3 == 0 else ()
        table_VC, ids_BL, labels_BL = example(seed, ignored)
        count = step_count_of(labels_BL, option)
        whole, expected_VC = program(table_VC, ids_BL, labels_BL, count)
        loss, gradient_VC = None, np.zeros_like(table_VC)
        for rows in parts:
            part, part_VC = program(table_VC, *micro_batch(rows, ids_BL, labels_BL), count)
            loss = part if loss is None else jax.tree.map(jnp.add, loss, part)
            gradient_VC = gradient_VC + np.asarray(part_VC)
        assert isinstance(loss, LossSum)
        case = f"{len(parts)} micro-batches, {option}"
        worst.see("7a", ulps(loss.mean(), whole.mean()), case)
        worst.see("7b", relative_distance(gradient_VC, expected_VC), case)
    worst.check()


def measure():
    """The worst distances from one device, for each number of devices and each option."""
    found = {}
    for option in OPTIONS:
        for count in DEVICES:
            devices = local_devices(8, count=count)
            program = jax.jit(
                loss_and_gradient(option),
                in_shardings=(devices.whole, devices.rows, devices.rows, devices.whole),
                out_shardings=devices.whole,
            )
            losses, gradients = [], []
            for seed in range(BATCHES):
                # One shard, or all but one, without a label.
                bad = [s for s in range(8) if (s == seed % 8) == bool(seed % 2)]
                rows = [row for s in bad for row in range(s * B // 8, (s + 1) * B // 8)]
                batch = example(seed, rows if seed % 5 else ())
                loss, gradient_VC = program(*batch, step_count_of(batch[2], option))
                assert len(loss.total.addressable_shards) == count
                losses.append(float(loss.mean()))
                gradients.append(np.asarray(gradient_VC))
            if count == 1:
                alone = losses, gradients
                continue
            found[f"{count} devices, {option}"] = [
                max(ulps(a, b) for a, b in zip(losses, alone[0], strict=True)),
                max(relative_distance(a, b) for a, b in zip(gradients, alone[1], strict=True)),
            ]
    return found


def test_any_number_of_devices_has_the_loss_and_gradient_of_one(parity):
    worst = Worst(parity)
    for case, (loss, gradient) in printed_by(__file__, devices=8).items():
        worst.see("7a", loss, case, BATCHES)
        worst.see("7b", gradient, case, BATCHES)
    assert worst.cases["7a"] == len(OPTIONS) * (len(DEVICES) - 1) * BATCHES
    worst.check()


if __name__ == "__main__":
    print(json.dumps(measure()))
