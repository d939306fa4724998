"""Policies by name: their dtypes, and the names that are refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

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
