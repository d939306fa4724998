"""Gradients in; what a number format does to each layer's, and the loss scale that suits, out.

Every figure compares the backward pass of a policy with a float32 one of the same batches: what
float32 has and the policy lost is gone, whatever the loss curve says.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, Float, Int

from jaxtag import step
from jaxtag.batch import Batch
from jaxtag.loss_scale import all_finite
from jaxtag.model import Model, Params

# Leaves that belong to the layer whose name stands before theirs; any other is one of its own.
_LEAVES = ("kernel", "bias", "scale")
MAX_EXPONENT = 120
"""Scales are tried up to this power of two."""
_SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}


@dataclass(frozen=True)
class AtScale:
    """What became of a layer's gradients at one loss scale."""

    flushed: float
    """Share of float32's nonzero gradients that are 0."""
    subnormal: float
    """Share of them that is left with fewer digits, below the smallest normal number."""
    bad: str
    """inf, NaN, or nothing."""
    error: float | None
    """Relative L2 distance from float32, after unscaling; None where not finite."""


@dataclass(frozen=True)
class LayerSurvey:
    """One layer, in float32 and at each scale."""

    name: str
    largest: float
    """Largest absolute gradient in float32."""
    at: tuple[AtScale, ...]
    """In the order of the survey's scales."""

    def overflows_from(self, scales: Sequence[float]) -> float | None:
        """The first of the survey's scales, from small to large, with an inf or NaN; or None."""
        return next((s for s, at in zip(scales, self.at, strict=True) if at.bad), None)


@dataclass(frozen=True)
class Survey:
    """All layers in the order in which the forward pass uses them."""

    policy: str
    scales: tuple[float, ...]
    layers: tuple[LayerSurvey, ...]

    def finite(self, index: int) -> bool:
        """Whether no layer had an inf or a NaN at the scale of this index."""
        return not any(layer.at[index].bad for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """As ``metrics.jsonl`` and ``diagnosis.json`` have it."""
        return asdict(self)


class _Counts(NamedTuple):
    """Of one leaf; sums but for the first and the flags."""

    largest: Float[Array, ""]
    nonzero: Int[Array, ""]
    flushed: Int[Array, ""]
    subnormal: Int[Array, ""]
    has_inf: Int[Array, ""]
    has_nan: Int[Array, ""]
    squared_error: Float[Array, ""]
    squared: Float[Array, ""]


def surveyor(recipe: step.Recipe, reference: Model) -> Callable[..., Survey]:
    """Make the function that compares the recipe's gradients with ``reference``'s in float32.

    (parameters, pairs of a batch and the loss count of its step, scales) -> ``Survey``. Dropout is
    off. It compiles once for each shape.
    """
    program = _program(recipe, reference)

    def survey(
        params: Params, batches: Sequence[tuple[Batch, np.float32]], scales: Sequence[float]
    ) -> Survey:
        per_scale = []
        for scale in scales:
            found = [program(params, *batch, np.float32(scale)) for batch in batches]
            per_scale.append(_over_batches(jax.device_get(found)))
        layers = []
        for name, leaves in layers_in_order(recipe.model, params, batches[0][0]).items():
            at = tuple(_at_scale(_together([found[p] for p in leaves])) for found in per_scale)
            largest = max(float(per_scale[0][leaf].largest) for leaf in leaves)
            layers.append(LayerSurvey(name, largest, at))
        return Survey(recipe.model.policy.name, tuple(map(float, scales)), tuple(layers))

    return survey


def _program(recipe: step.Recipe, reference: Model) -> Any:
    """(parameters, batch, count, scale) -> counts of each leaf."""
    smallest_normal = _SMALLEST_NORMAL[recipe.model.policy.name]
    in_float32 = step.Recipe(
        reference,
        recipe.optimizer,
        recipe.schedule,
        class_weights_C=recipe.class_weights_C,
        label_smoothing=recipe.label_smoothing,
    )

    def compare(exact: Array, scaled: Array, scale: Array) -> _Counts:
        nonzero = exact != 0.0
        size = jnp.abs(scaled)
        error = scaled / scale - exact
        return _Counts(
            largest=jnp.max(jnp.abs(exact), initial=0.0),
            nonzero=jnp.sum(nonzero, dtype=jnp.int32),
            flushed=jnp.sum(nonzero & (scaled == 0.0), dtype=jnp.int32),
            subnormal=jnp.sum(
                nonzero & (size > 0.0) & (size < smallest_normal),
                dtype=jnp.int32,
            ),
            has_inf=jnp.sum(jnp.isinf(scaled), dtype=jnp.int32),
            has_nan=jnp.sum(jnp.isnan(scaled), dtype=jnp.int32),
            squared_error=jnp.sum(error * error),
            squared=jnp.sum(exact * exact),
        )

    @functools.partial(jax.jit, compiler_options=recipe.model.policy.compiler_options)
    def program(params: Params, batch: Batch, count: Array, scale: Array) -> dict[str, _Counts]:
        exact, _ = step.gradient(in_float32, params, batch, count, None)
        scaled, _ = step.gradient(recipe, params, batch, count, None, scale)
        return _named(jax.tree.map(functools.partial(compare, scale=scale), exact, scaled))

    return program


def _named(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, _Counts)
    )
    return {_path(path): leaf for path, leaf in leaves}


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _over_batches(found: Sequence[dict[str, _Counts]]) -> dict[str, _Counts]:
    return {name: _together([counts[name] for counts in found]) for name in found[0]}


def _together(counts: Sequence[_Counts]) -> _Counts:
    largest = max(float(one.largest) for one in counts)
    sums = [sum(float(value) for value in column) for column in zip(*counts, strict=True)]
    return _Counts(*sums)._replace(largest=largest)  # type: ignore[arg-type]


def _at_scale(counts: _Counts) -> AtScale:
    nonzero = max(1.0, float(counts.nonzero))
    bad = "NaN" if counts.has_nan else "inf" if counts.has_inf else ""
    error = None
    if not bad:
        squared = float(counts.squared)
        error = math.sqrt(float(counts.squared_error) / squared) if squared else 0.0
    return AtScale(
        flushed=float(counts.flushed) / nonzero,
        subnormal=float(counts.subnormal) / nonzero,
        bad=bad,
        error=error,
    )


def layers_in_order(model: Model, params: Params, batch: Batch) -> dict[str, list[str]]:
    """The layers as the forward pass first uses them, each with the paths of its leaves."""
    paths = [_path(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    jaxpr = jax.make_jaxpr(lambda params, batch: model.apply(params, batch))(params, batch).jaxpr
    names = dict(zip(jaxpr.invars, paths, strict=False))  # the parameters come first
    used: dict[str, None] = {}
    for equation in jaxpr.eqns:
        for variable in equation.invars:
            if not isinstance(variable, Literal) and variable in names:
                used.setdefault(names[variable])
    layers: dict[str, list[str]] = {}
    for path in [*used, *paths]:
        parent, _, leaf = path.rpartition(".")
        leaves = layers.setdefault(parent if parent and leaf in _LEAVES else path, [])
        if path not in leaves:
            leaves.append(path)
    return layers


def largest_finite_scale(
    recipe: step.Recipe,
    params: Params,
    batches: Sequence[tuple[Batch, np.float32]],
) -> float | None:
    """The largest power of two at which no gradient of these batches is inf or NaN, by trying.

    None where there is none from 2^-24 on.
    """

    @functools.partial(jax.jit, compiler_options=recipe.model.policy.compiler_options)
    def program(params: Params, batch: Batch, count: Array, scale: Array) -> Array:
        return all_finite(step.gradient(recipe, params, batch, count, None, scale)[0])

    def holds(exponent: int) -> bool:
        scale = np.float32(2.0**exponent)
        return all(bool(program(params, batch, count, scale)) for batch, count in batches)

    # Gradients grow with the scale, so that halving the range finds where they leave it.
    low, high = -25, MAX_EXPONENT + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return None if low < -24 else 2.0**low


def verdict(survey: Survey, best: float | None) -> str:
    """One sentence: what is lost without scaling, which scale loses nothing, how far it may rise.

    The survey begins with scale 1; ``best`` is what ``largest_finite_scale`` found.
    """
    worst = max(survey.layers, key=lambda layer: layer.at[0].flushed)
    if best is None:
        bad = next((la.name for la in reversed(survey.layers) if la.at[0].bad), "the loss")
        return f"{bad} overflows {survey.policy} at every loss scale from 2^-24 on; use bfloat16"
    recommended = (
        f"the largest that stays finite is 2^{math.log2(best):.0f}: "
        f"--precision.init-scale {best:.16g}"
    )
    at_one = worst.at[0]
    if not survey.finite(0):
        bad = next(la.name for la in reversed(survey.layers) if la.at[0].bad)
        return f"{bad} overflows {survey.policy} at loss scale {survey.scales[0]:g}; {recommended}"
    if not at_one.flushed:
        poor = max(survey.layers, key=lambda layer: layer.at[0].subnormal)
        return (
            f"no layer loses a gradient to {survey.policy} at loss scale 1, but {poor.name} has "
            f"{_percent(poor.at[0].subnormal)} of them subnormal; {recommended}"
        )
    usable = [i for i, scale in enumerate(survey.scales) if scale <= best and survey.finite(i)]
    lost = {index: max(layer.at[index].flushed for layer in survey.layers) for index in usable}
    least = min(usable, key=lambda index: (lost[index], index))
    name = f"2^{math.log2(survey.scales[least]):.0f}"
    loses = "none" if not lost[least] else f"at most {_percent(lost[least])} of a layer's"
    bits = math.log2(best / survey.scales[least])
    return (
        f"{worst.name} loses {_percent(at_one.flushed)} of its gradients to {survey.policy} at "
        f"loss scale 1; {name} loses {loses} and has {bits:.0f} bits of headroom; {recommended}"
    )


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 else "less than 0.1%"


def first_bad_layer(
    recipe: step.Recipe, state: step.TrainState, batches: Sequence[Batch], count: np.float32
) -> str:
    """Where, seen from the loss, the last step's gradient first was inf or NaN, as one phrase."""
    scaling = state.opt_state.loss_scale
    scale = float(scaling.scale)
    if recipe.scaling.mode == "dynamic" and not scaling.stuck:
        scale /= recipe.scaling.backoff_factor  # what it was before the last step was skipped

    @functools.partial(jax.jit, compiler_options=recipe.model.policy.compiler_options)
    def program(params: Params, batch: Batch, count: Array, key: Array) -> Any:
        grads, sums = step.gradient(recipe, params, batch, count, key, scale)
        flags = jax.tree.map(lambda g: jnp.array([jnp.isinf(g).any(), jnp.isnan(g).any()]), grads)
        return flags, sums.loss.total

    for number, batch in enumerate(batches):
        key = step.dropout_key(recipe, state.step, number)
        flags, loss = jax.device_get(program(state.params, batch, count, key))
        if not np.isfinite(loss):
            return f"the forward pass itself overflows: its loss is {loss:g}"
        named = {_path(p): leaf for p, leaf in jax.tree_util.tree_flatten_with_path(flags)[0]}
        for name, leaves in reversed(layers_in_order(recipe.model, state.params, batch).items()):
            has_inf, has_nan = np.any([named[leaf] for leaf in leaves], axis=0)
            if has_inf or has_nan:
                kind = "inf" if has_inf else "NaN"
                return f"seen from the loss, the first layer with {kind} in its gradient is {name}"
    return "the same step, taken again, has no inf or NaN"
