"""Recipes and shapes in; where the memory of a training step goes out."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from jaxtag import step
from jaxtag.batch import Batch
from jaxtag.device import local_devices
from jaxtag.model import Params
from jaxtag.plan import Shape


def memory_of_steps(
    recipes: Mapping[str, step.Recipe], example: Batch, shapes: Sequence[Shape]
) -> list[dict[str, Any]]:
    """Bytes of one training step for each shape and policy, on one device.

    Parameters, gradients and optimizer state are float32 under every policy. ``kept`` is what the
    forward pass keeps for the backward pass, by the dtypes of the model, on any device; ``working``
    is what the compiled program needs besides the gradients here, by XLA's own analysis: on a
    CPU, which computes float16 products in float32, it may even grow.
    """
    rows = []
    for shape in shapes:
        for policy, recipe in recipes.items():
            state = jax.eval_shape(functools.partial(step.init_state, recipe))
            compiled = _compiled_step(recipe, state, example, shape)
            params, optimizer = size_of(state.params), size_of(state.opt_state)
            working = compiled.memory_analysis().temp_size_in_bytes
            rows.append(
                {
                    "shape": f"{shape.rows} × {shape.length}",
                    "policy": policy,
                    "parameters": params,
                    "gradients": params,
                    "optimizer": optimizer,
                    "kept": kept_bytes(recipe, state.params, _resized(example, shape)),
                    "working": max(0, working - params),
                }
            )
    return rows


def _compiled_step(recipe: step.Recipe, state: Any, example: Batch, shape: Shape) -> Any:
    batch = _resized(example, shape)
    count = jax.ShapeDtypeStruct((), jnp.float32)
    programs = step.train_programs(recipe, local_devices(shape.rows, count=1))
    return programs.train.lower(state, batch, count).compile()  # type: ignore[attr-defined]


def _resized(example: Batch, shape: Shape) -> Any:
    def resized(values: Any) -> Any:
        return jax.ShapeDtypeStruct((shape.rows, shape.length, *values.shape[2:]), jnp.int32)

    return Batch(*map(resized, example))


def kept_bytes(recipe: step.Recipe, params: Any, batch: Any) -> int:
    """Bytes that a forward pass keeps for its backward pass, parameters and batch left out."""

    def residuals(params: Params, batch: Batch) -> Any:
        return jax.vjp(lambda params: recipe.model.apply(params, batch), params)[1]

    jaxpr = jax.make_jaxpr(residuals)(params, batch).jaxpr
    given = set(jaxpr.invars)
    kept = {v for v in jaxpr.outvars if not isinstance(v, Literal) and v not in given}
    return size_of([variable.aval for variable in kept])


def size_of(tree: Any) -> int:
    """Bytes of all leaves."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
