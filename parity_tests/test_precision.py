"""Policies by name: their dtypes, and the names that are refused."""

from __future__ import annotations

import functools
import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.experimental import topologies

from jaxtag import device, model, step
from jaxtag.config import ConfigError
from jaxtag.precision import Policy


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_policy_computes_in_the_dtype_that_it_is_named_after(name):
    assert Policy(name).compute_dtype == jnp.dtype(name)


def test_only_float32_asks_for_more_than_the_fastest_products():
    assert Policy("float32").matmul_precision == jax.lax.Precision.HIGHEST
    assert Policy("bfloat16").matmul_precision == jax.lax.Precision.DEFAULT


@pytest.mark.parametrize("name", ["float64", "bf16", ""])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ConfigError, match=rf"float32, bfloat16 or float16, found '{name}'"):
        Policy(name)


def test_policies_of_one_name_are_equal():
    assert Policy("bfloat16") == Policy("bfloat16") != Policy("float32")


# What XLA makes of it


def rounded_and_back(dtype, x):
    return x.astype(dtype).astype(jnp.float32)


def converts_in(text, dtype):
    """Casts from float32 to a narrow type in a compiled program's text."""
    return len(re.findall(rf"= {dtype}\[[^=]* convert\(", text))


def test_the_options_of_float16_keep_roundings_that_xla_leaves_out_by_default():
    # On a CPU it is those to bfloat16 that go; on a GPU those to float16 too.
    def product_and_sum(x):
        narrow = x.astype(jnp.bfloat16)
        return (narrow * narrow + narrow).astype(jnp.float32)

    default, strict = (
        converts_in(
            jax.jit(product_and_sum, compiler_options=options)
            .lower(jnp.ones(8))
            .compile()
            .as_text(),
            "bf16",
        )
        for options in (None, Policy("float16").compiler_options)
    )
    assert default < strict


def test_other_policies_compile_as_xla_does_by_default():
    assert Policy("float32").compiler_options is Policy("bfloat16").compiler_options is None


@pytest.mark.parametrize("policy", ["float16", "float32"])
def test_the_gradient_of_a_float32_weight_overflows_where_float16_does(policy):
    def loss(w, x):
        dtype = Policy(policy).compute_dtype
        return jnp.sum((x.astype(dtype) @ w.astype(dtype)).astype(jnp.float32))

    program = jax.jit(jax.grad(loss), compiler_options=Policy(policy).compiler_options)
    gradient = program(jnp.ones((1, 1)), jnp.full((2, 1), 6e4))
    assert float(gradient[0, 0]) == (np.inf if policy == "float16" else 1.2e5)


def test_all_training_programs_are_compiled_with_the_policys_options(monkeypatch):
    given = []
    monkeypatch.setattr(
        step.jax, "jit", lambda function, **options: given.append(options) or function
    )
    built = model.Model(lambda key: {}, lambda *arguments: None, Policy("float16"))
    schedule = optax.constant_schedule(0.1)
    recipe = step.Recipe(built, optax.identity(), schedule)
    step.train_programs(recipe, device.local_devices(8))
    step.eval_program(built, device.local_devices(8))
    step.predict_program(built, device.local_devices(8))
    assert len(given) == 6
    assert {one["compiler_options"]["xla_allow_excess_precision"] for one in given} == {False}


PLATFORMS = {
    "cuda": ("jax_cuda12_plugin", "1x1x1"),
    "tpu": ("libtpu", "v5e:2x2"),
}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_elsewhere_too_float16_is_rounded_to_in_the_compiled_text(platform):
    plugin, topology = PLATFORMS[platform]
    if importlib.util.find_spec(plugin) is None:
        pytest.skip(f"{plugin} is not installed: no compiling for {platform} from here")
    described = topologies.get_topology_desc(topology, platform)
    mesh = jax.sharding.Mesh(described.devices[:1], ("rows",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    program = jax.jit(
        functools.partial(rounded_and_back, jnp.float16),
        in_shardings=place,
        compiler_options=Policy("float16").compiler_options,
    )
    text = program.lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile().as_text()
    assert converts_in(text, "f16") >= 1
