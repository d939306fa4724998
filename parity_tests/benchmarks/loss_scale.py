"""What loss scaling costs: ``python parity_tests/benchmarks/loss_scale.py``.

Prints the ratio of the time of a step of the default model with scaling, and both checks, to that
of the same step without; in pairs, one after the other, in one process.
"""

from __future__ import annotations

import statistics
import time

import jax
import numpy as np

from jaxtag import device, model, optim, step
from jaxtag.batch import Batch
from jaxtag.config import ModelConfig, TrainConfig
from jaxtag.encode import PARTS
from jaxtag.loss_scale import OFF, LossScaleConfig
from jaxtag.precision import Policy

ROWS, LENGTH, WORDS, AFFIXES, CLASSES = 16, 32, 5_000, 10_000, 13
PAIRS = 300


def batch() -> Batch:
    """A batch of the default number of cells, four fifths of them real."""
    rng = np.random.default_rng(0)
    positions_BL = np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1))
    real_BL = positions_BL < rng.integers(20, LENGTH, (ROWS, 1))
    ids_BL = np.where(real_BL, rng.integers(2, WORDS, (ROWS, LENGTH)), 0).astype(np.int32)
    parts_BLW = rng.integers(1, AFFIXES, (ROWS, LENGTH, PARTS["affixes"])).astype(np.int32)
    labels_BL = np.where(real_BL, rng.integers(0, CLASSES, (ROWS, LENGTH)), -100).astype(np.int32)
    return Batch(ids_BL, parts_BLW, labels_BL, real_BL.astype(np.int32), positions_BL)


def main() -> None:
    """Time pairs of steps, and print the median ratio and its spread."""
    devices = device.local_devices(ROWS)
    example = devices.shard(batch())
    count = np.float32((batch().labels_BL != -100).sum())
    sizes = model.Sizes(words=WORDS, kind="affixes", parts=AFFIXES, classes=CLASSES)
    for policy in ("float32", "float16"):
        tagger = model.build(ModelConfig(), Policy(policy), sizes)
        schedule = optim.schedule(TrainConfig(), 10_000)
        runs = []
        for scaling in (OFF, LossScaleConfig(init_scale=2.0**10)):
            optimizer = optim.build(TrainConfig(), schedule)
            recipe = step.Recipe(tagger, optimizer, schedule, scaling)
            programs = step.train_programs(recipe, devices)
            runs.append([programs.train, devices.replicate(step.init_state(recipe))])
        ratios, plain = [], []
        for number in range(PAIRS + 20):
            times = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                train, state = runs[which]
                started = time.perf_counter()
                state, _ = jax.block_until_ready(train(state, example, count))
                times[which] = time.perf_counter() - started
                runs[which][1] = state
            if number >= 20:  # the first ones compile and warm up
                ratios.append(times[1] / times[0])
                plain.append(times[0])
        quarters = statistics.quantiles(ratios, n=4)
        print(
            f"{policy}: a step of {1e3 * statistics.median(plain):.1f} ms; with loss scaling "
            f"× {quarters[1]:.3f} (quartiles {quarters[0]:.3f} to {quarters[2]:.3f}, {PAIRS} pairs)"
        )


if __name__ == "__main__":
    main()
