"""One device or eight: the same numbers. Run as a program, this file measures that on fake CPUs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from test_step import batch_of, first_state, recipe_of, relative_distance, tokens_of
from tolerances import PARTITION_RELATIVE

from jaxtag import step
from jaxtag.config import ConfigError
from jaxtag.device import Devices, local_devices, prefetch

ROWS = 16  # two for each of eight devices
BATCHES = {
    "uneven": [8, 8, 1, 2, 7, 1, 1, 1, 8, 5, 6, 3, 1, 1, 2, 8],
    "one device has padding only": [8, 8, 1, 2, 7, 1, 1, 1, 8, 5, 6, 3, 1, 1],
    "seven devices have padding only": [8, 3],
}


def measure():
    """All that eight devices give beside what one gives, as far as JSON holds it."""
    return {
        "devices": jax.device_count(),
        "three devices": refusal_of_three_devices(),
        "shards": [describe_shards(leaf) for leaf in jax.tree.leaves(sharded_batch())],
        "gradient": {name: gradient_distance("bilstm", name) for name in BATCHES},
        "training": training_distances("transformer"),
    }


def refusal_of_three_devices():
    try:
        local_devices(8, count=3)
    except ConfigError as error:
        return str(error)
    return ""


def sharded_batch():
    return local_devices(8, count=8).shard(batch_of(BATCHES["uneven"], rows=ROWS))


def describe_shards(array):
    """Whether the shards, in order of their devices, are two rows each of the whole array."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    rows = [slice(2 * number, 2 * number + 2) for number in range(8)]
    return len(shards) == 8 and all(
        np.array_equal(shard.data, np.asarray(array)[part])
        for shard, part in zip(shards, rows, strict=True)
    )


def sgd_recipe(kind):
    # AdamW divides by the gradient's size, so that its steps would hide how near gradients are.
    return dataclasses.replace(recipe_of(kind), optimizer=optax.sgd(0.5))


programs_of = {}


def programs(kind, count):
    if (kind, count) not in programs_of:
        devices = local_devices(8, count=count)
        programs_of[kind, count] = devices, step.train_programs(sgd_recipe(kind), devices)
    return programs_of[kind, count]


def gradient_distance(kind, name):
    batch, found = batch_of(BATCHES[name], rows=ROWS), []
    for count in (8, 1):
        devices, compiled = programs(kind, count)
        state = devices.replicate(first_state(sgd_recipe(kind)))
        gradient, _ = compiled.accumulate(
            state,
            compiled.zeros(state.params),
            devices.shard(batch),
            tokens_of(batch),
            np.int32(0),
        )
        found.append(jax.tree.map(np.asarray, gradient))
    return relative_distance(*found)


def training_distances(kind):
    """Relative distances of the parameters and of each loss after five steps, and all counts."""
    batches = [
        batch_of(lengths, rows=ROWS, seed=seed)
        for seed, lengths in enumerate([*BATCHES.values(), BATCHES["uneven"], [1] * ROWS])
    ]
    params, losses, counts, whole = [], [], [], []
    for count in (8, 1):
        devices, compiled = programs(kind, count)
        state, all_sums = devices.replicate(first_state(sgd_recipe(kind))), []
        for batch in batches:
            state, sums = compiled.train(state, devices.shard(batch), tokens_of(batch))
            all_sums.append(sums)
        whole.append(
            all(
                leaf.is_fully_replicated and len(leaf.addressable_shards) == count
                for leaf in jax.tree.leaves(state)
            )
        )
        params.append(jax.tree.map(np.asarray, state.params))
        losses.append([float(sums.loss.mean()) for sums in all_sums])
        counts.append([[int(number) for number in sums.tokens] for sums in all_sums])
    eight, one = losses
    return {
        "params": relative_distance(*params),
        "losses": [abs(a - b) / b for a, b in zip(eight, one, strict=True)],
        "counts": counts,
        "whole": whole,
    }


# Eight devices


@pytest.fixture(scope="module")
def measured():
    """What ``measure`` gives in a process of its own that has eight devices."""
    root = Path(__file__).resolve().parents[1]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir or "",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_NUM_CPU_DEVICES": "8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(root), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["devices"] == 8
    return found


def test_every_array_of_a_batch_is_split_over_all_devices_by_rows(measured):
    assert measured["shards"] == [True] * 5


@pytest.mark.parametrize("name", BATCHES)
def test_the_gradient_on_eight_devices_is_that_on_one(measured, name):
    assert measured["gradient"][name] <= PARTITION_RELATIVE


def test_five_steps_have_the_losses_that_they_have_on_one_device(measured):
    assert len(measured["training"]["losses"]) == 5
    assert max(measured["training"]["losses"]) <= PARTITION_RELATIVE


def test_five_steps_lead_to_the_parameters_that_they_lead_to_on_one_device(measured):
    assert measured["training"]["params"] <= PARTITION_RELATIVE


def test_five_steps_have_the_token_counts_that_they_have_on_one_device(measured):
    eight, one = measured["training"]["counts"]
    assert eight == one


def test_after_five_steps_every_device_holds_the_whole_state(measured):
    assert measured["training"]["whole"] == [True, True]


def test_devices_that_do_not_divide_the_row_multiple_are_refused(measured):
    assert measured["three devices"] == (
        "data.row-multiple: expected a multiple of the 3 devices, found 8"
    )


# One device


def test_a_copy_made_for_donation_shares_nothing_with_the_original():
    devices = local_devices(8, count=1)
    original = {"kernel": jnp.ones(3)}
    copy = devices.replicate(original)
    jax.jit(lambda tree: {"kernel": tree["kernel"] + 1}, donate_argnums=0)(copy)
    assert copy["kernel"].is_deleted()
    assert original["kernel"].tolist() == [1.0, 1.0, 1.0]


def test_devices_describe_their_number_and_kind():
    devices = local_devices(8, count=1)
    assert isinstance(devices, Devices)
    assert devices.describe() == f"1 × {jax.local_devices()[0].device_kind}"


# Prefetching


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("ahead", [1, 2, 50])
def test_prefetching_keeps_order_and_loses_nothing(ahead):
    found = list(prefetch(range(20), lambda item: item * item, ahead=ahead))
    assert found == [item * item for item in range(20)]
    assert not prefetch_threads()


def test_prefetching_nothing_gives_nothing():
    assert list(prefetch([], lambda item: item)) == []


def test_none_is_an_item_like_any_other():
    assert list(prefetch([1, None, 2], lambda item: item)) == [1, None, 2]


def test_an_exception_in_the_thread_is_raised_in_its_place_and_the_thread_ends():
    def place(item):
        if item == 2:
            raise ValueError("item 2 has no place")
        return item

    items = prefetch(range(9), place)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(ValueError, match="item 2 has no place"):
        next(items)
    assert not prefetch_threads()


def test_an_exception_of_the_items_is_raised_too():
    def items():
        yield 1
        raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        list(prefetch(items(), lambda item: item))


def test_stop_iteration_in_the_thread_is_an_error_and_not_the_end_of_the_items():
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(prefetch([[1], [], [2]], lambda item: next(iter(item))))


def test_the_thread_ends_when_the_reader_leaves_early():
    items = prefetch(itertools.count(), lambda item: item)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    assert len(prefetch_threads()) == 1
    items.close()
    assert not prefetch_threads()


def test_no_more_is_placed_ahead_than_was_asked_for():
    placed = []
    items = prefetch(itertools.count(), placed.append, ahead=3)
    next(items)
    time.sleep(0.3)
    # One was read, three wait, and one more is in the thread's hand.
    assert len(placed) == 5
    items.close()


if __name__ == "__main__":
    print(json.dumps(measure()))
