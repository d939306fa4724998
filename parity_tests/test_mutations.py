"""Proof that the tests can fail: each of these mistakes, made on purpose, turns one of them red.

Run as a program, this file makes the mistakes, one after the other, and prints what failed.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import conftest  # noqa: F401  # the cache of compiled programs, which a program needs too
import jax
import pytest
import test_losses
import test_parity_labels
import test_parity_losses
import test_parity_models
import test_parity_optim
import test_plan
import test_step
from processes import printed_by
from report import Parity

from jaxtag import losses, model, optim, plan, step


@dataclass(frozen=True)
class Mutation:
    """A mistake, and a test that it must turn red."""

    edits: tuple[tuple[Callable[..., Any], str, str], ...]
    """Functions, what stands in their source once, and what the mistake makes of it."""
    test: Callable[..., None]
    arguments: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    """What the failure says."""


MUTATIONS = {
    "loss as logsumexp - x_label": Mutation(
        (
            (
                losses.token_loss,
                "jnp.take_along_axis(shifted_BLC,",
                "jnp.take_along_axis(logits_BLC,",
            ),
            (losses.token_loss, "= log_sum_BL - label_BL", "= (top_BL + log_sum_BL) - label_BL"),
        ),
        test_parity_losses.test_losses_and_gradients_of_hard_rows_are_torchs,
        {"option": "plain"},
        "claim 2",
    ),
    "denominator over padded cells": Mutation(
        (
            (
                losses.loss_count,
                "jnp.sum(int32_labels(labels_BL) != ignore_index, dtype=jnp.int32)",
                "jnp.int32(labels_BL.size)",
            ),
        ),
        test_losses.test_a_hundred_padded_cells_do_not_move_the_mean,
    ),
    "mean of the means of micro-batches": Mutation(
        (
            (
                step.gradient,
                "loss.total / jnp.where(step_count > 0, step_count, 1.0)",
                "loss.mean()",
            ),
        ),
        test_step.test_the_loss_that_is_differentiated_is_the_mean_over_weights_with_class_weights,
    ),
    "smoothing of eps / (C - 1)": Mutation(
        (
            (
                losses.token_loss,
                "_over_classes(jnp.add, spread_BLC) / num_classes + weight * log_sum_BL",
                "(_over_classes(jnp.add, spread_BLC) + num_classes * weight * log_sum_BL"
                " - loss_BL) / (num_classes - 1)",
            ),
        ),
        test_losses.test_the_mean_with_class_weights_divides_by_the_weights_of_the_labels_as_torch_does,
        {"smoothing": 0.1},
    ),
    "mask multiplied as float": Mutation(
        (
            (
                losses.token_loss,
                "jnp.where(keep_BL[..., None], jnp.asarray(logits_BLC, jnp.float32), 0.0)",
                "jnp.asarray(logits_BLC, jnp.float32) * keep_BL[..., None].astype(jnp.float32)",
            ),
            (
                losses.token_loss,
                "jnp.where(keep_BL, loss_BL, 0.0)",
                "loss_BL * keep_BL.astype(jnp.float32)",
            ),
        ),
        test_parity_labels.test_no_logits_of_ignored_tokens_reach_loss_or_gradient,
        {"option": "plain"},
        "claim 14",
    ),
    "-1 read as the last class": Mutation(
        ((losses.token_loss, "(labels_BL >= 0)", "(labels_BL >= -num_classes)"),),
        test_parity_labels.test_inside_jit_loss_and_gradient_of_bad_labels_are_nan_or_ignored,
        {"option": "plain", "ignore_index": -100},
        "claim 13",
    ),
    "clipping without torch's 1e-6": Mutation(
        ((optim.clip_by_global_norm, "max_norm / (norm + 1e-6)", "max_norm / norm"),),
        test_parity_optim.test_the_clip_coefficient_is_no_further_from_float64_than_torchs,
        message="claim 9b",
    ),
    "weight decay of 1e-4 by default": Mutation(
        (
            (
                optim.adamw,
                "weight_decay: float | Array = 1e-2",
                "weight_decay: float | Array = 1e-4",
            ),
        ),
        test_parity_optim.test_a_thousand_steps_of_adamw_are_torchs,
        {"name": "defaults"},
        "claim 8",
    ),
    "bias correction in plain float32": Mutation(
        (
            (
                optim.bias_correction,
                "-jnp.expm1(count.astype(jnp.result_type(float)) * log)",
                "1.0 - decay ** count.astype(jnp.float32)",
            ),
        ),
        test_parity_optim.test_the_first_steps_of_adamw_from_zero_are_torchs,
        {"steps": 1},
        "claim 8",
    ),
    "the last batch dropped": Mutation(
        (
            (
                plan.epoch_plan,
                "range(0, members.size, shape.rows)",
                "range(0, members.size - shape.rows + 1, shape.rows)",
            ),
        ),
        test_plan.TestEpochPlan.test_without_shuffling_sentences_keep_their_order_within_a_shape,
        {"self": None},
    ),
}
LONG_MUTATIONS = {
    "LayerNorm with an epsilon of 1e-6": Mutation(
        ((model.layers.norm, "epsilon=1e-5", "epsilon=1e-6"),),
        test_parity_models.test_logits_and_gradients_of_both_models_are_torchs,
        {"kind": "transformer"},
        "claim 10",
    ),
    "GELU by tanh": Mutation(
        ((model.attention.Layer.__call__, "approximate=False", "approximate=True"),),
        test_parity_models.test_logits_and_gradients_of_both_models_are_torchs,
        {"kind": "transformer"},
        "claim 10",
    ),
}


def mutate(
    patch: pytest.MonkeyPatch, sources: dict[Any, str], function: Any, old: str, new: str
) -> None:
    """Give a function, wherever it has been imported to, the code of its edited source."""
    if function not in sources:
        sources[function] = textwrap.dedent(inspect.getsource(function))
    found = sources[function].count(old)
    assert found == 1, f"{function.__name__}: {old!r} stands there {found} times"
    sources[function] = sources[function].replace(old, new)
    names: dict[str, Any] = {}
    exec("from __future__ import annotations\n" + sources[function], {}, names)
    mutated = names[function.__name__]
    patch.setattr(function, "__code__", mutated.__code__)
    patch.setattr(function, "__kwdefaults__", mutated.__kwdefaults__)


def failure_of(mutation: Mutation, edits: bool = True) -> str | None:
    """What the test says of the mistake; None where it passes."""
    # What is compiled already, no mistake can change any more.
    jax.clear_caches()
    arguments = dict(mutation.arguments)
    if "parity" in inspect.signature(mutation.test).parameters:
        arguments["parity"] = Parity()
    sources: dict[Any, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        for function, old, new in mutation.edits if edits else ():
            mutate(patch, sources, function, old, new)
        try:
            mutation.test(**arguments)
        except AssertionError as error:
            return str(error) or "assertion failed"
        return None


@functools.cache
def failures(which: str) -> dict[str, str | None]:
    """What ``failure_of`` gives for each mistake, all in one process that they cannot leave."""
    return printed_by(__file__, which)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_turns_a_test_red(name):
    failure = failures("plain")[name]
    assert failure is not None
    assert MUTATIONS[name].message in failure


@pytest.mark.long
@pytest.mark.parametrize("name", LONG_MUTATIONS)
def test_a_mistake_in_the_model_turns_a_test_red(name):
    failure = failures("long")[name]
    assert failure is not None
    assert LONG_MUTATIONS[name].message in failure


@pytest.mark.long
def test_without_a_mistake_all_these_tests_pass():
    found = failures("none")
    assert found == dict.fromkeys([*MUTATIONS, *LONG_MUTATIONS])


if __name__ == "__main__":
    match sys.argv[1]:
        case "plain":
            chosen = MUTATIONS
        case "long":
            chosen = LONG_MUTATIONS
        case _:
            chosen = MUTATIONS | LONG_MUTATIONS
    made = {name: failure_of(one, edits=sys.argv[1] != "none") for name, one in chosen.items()}
    print(json.dumps(made))
