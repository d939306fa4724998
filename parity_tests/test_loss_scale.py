"""Loss scaling alone: what a skipped step leaves, what a window is, what no scale may become."""

from __future__ import annotations

import functools
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from distances import relative_distance
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import printed_by
from tolerances import FEW_FLOAT32_ROUNDINGS

from jaxtag import loss_scale, optim
from jaxtag.loss_scale import LossScaleConfig, find, loss_scaled

INF, NAN = float("inf"), float("nan")
DEFAULTS = LossScaleConfig()
PARAMS = {"w": np.array([1.0, -0.0, -3.0], np.float32), "b": np.array([2.0], np.float32)}


def gradient(value):
    return jax.tree.map(lambda leaf: np.full_like(leaf, value), PARAMS)


def optimizer_of(config=DEFAULTS, *, accumulate=1):
    """Everything that has a state of its own: momentum, decay, a schedule, a moving average."""
    return loss_scaled(inner_optimizer(), config, accumulate=accumulate)


def inner_optimizer():
    return optax.chain(
        optim.clip_by_global_norm(1.0),
        optim.adamw(optax.linear_schedule(0.1, 0.0, 10), weight_decay=0.1),
        optax.ema(0.9),
    )


@functools.cache
def stepper(config=DEFAULTS, accumulate=1):
    """One compiled step: (parameters, state, scaled gradient) -> the next two, and the updates."""
    optimizer = optimizer_of(config, accumulate=accumulate)

    @jax.jit
    def step(params, state, scaled):
        updates, state = optimizer.update(scaled, state, params)
        return optax.apply_updates(params, updates), state, updates

    return optimizer, step


@functools.cache
def in_one(config=DEFAULTS):
    """The same step as the trainer takes it, parameters included."""

    @jax.jit
    def step(params, state, scaled):
        return loss_scale.take_step(inner_optimizer(), config, scaled, state, params)

    return step


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


# Skipping


@pytest.mark.parametrize("bad", [INF, -INF, NAN])
def test_a_skipped_step_changes_no_bit_but_the_scale_and_its_counts(bad):
    optimizer, step = stepper()
    _, state, _ = step(PARAMS, optimizer.init(PARAMS), gradient(65536.0))
    scaled = gradient(1.0)
    scaled["b"][0] = bad
    _, skipped, updates = step(PARAMS, state, scaled)
    assert bits(skipped.inner) == bits(state.inner)
    assert all(np.all(leaf == 0.0) and np.all(np.signbit(leaf)) for leaf in updates.values())
    found = find(skipped)
    assert (float(found.scale), int(found.growth_tracker)) == (2.0**15, 0)
    assert (int(found.applied), int(found.skipped), int(found.consecutive_skips)) == (1, 1, 1)
    assert not found.last_finite

    # To add nothing to a subnormal parameter would make it 0.
    params = PARAMS | {"b": np.array([1e-40], np.float32)}
    after, same = in_one()(params, state, scaled)
    assert bits(after) == bits(params)
    assert bits(same) == bits(skipped)


def test_the_trainers_step_is_the_wrappers_update_applied():
    optimizer, step = stepper()
    params, state = PARAMS, optimizer.init(PARAMS)
    taken, taken_state = PARAMS, state
    for value in (65536.0, INF, 3.0, NAN, -65536.0):
        params, state, _ = step(params, state, gradient(value))
        taken, taken_state = in_one()(taken, taken_state, gradient(value))
        assert bits(find(taken_state)) == bits(find(state))
    assert relative_distance(taken, params) <= FEW_FLOAT32_ROUNDINGS


def test_a_schedule_inside_counts_the_steps_that_were_taken():
    optimizer, step = stepper()
    params, state = PARAMS, optimizer.init(PARAMS)
    for value in (NAN, 1.0, INF, NAN, 1.0):
        params, state, _ = step(params, state, gradient(value))
    assert int(state.inner[1].count) == int(find(state).applied) == 2
    assert int(find(state).skipped) == 3
    assert int(find(state).consecutive_skips) == 0


def test_what_lives_outside_is_rolled_back_with_a_skipped_step():
    optimizer, step = stepper()
    for value, expected in ((1.0, 5.0), (INF, 3.0)):
        _, state, _ = step(PARAMS, optimizer.init(PARAMS), gradient(value))
        average = loss_scale.select_applied(state, {"mean": np.float32(5.0)}, {"mean": 3.0})
        assert float(average["mean"]) == expected


def test_the_step_is_that_of_the_unscaled_gradient():
    inner = optax.sgd(0.1, momentum=0.9)
    expected, _ = inner.update(gradient(0.25), inner.init(PARAMS), PARAMS)
    optimizer = loss_scaled(inner)
    found, _ = optimizer.update(gradient(0.25 * 65536.0), optimizer.init(PARAMS), PARAMS)
    assert bits(found) == bits(expected)


# The order of things


def test_clipping_before_unscaling_clips_to_almost_nothing():
    right = loss_scaled(optax.chain(optim.clip_by_global_norm(1.0), optax.sgd(1.0)))
    wrong = optax.chain(optim.clip_by_global_norm(1.0), loss_scaled(optax.sgd(1.0)))
    scaled = {"w": jnp.array([3.0, 4.0]) * 65536.0}
    for optimizer, size in ((right, 1.0), (wrong, 1.0 / 65536.0)):
        updates, _ = optimizer.update(scaled, optimizer.init(scaled), scaled)
        assert float(jnp.linalg.norm(updates["w"])) == pytest.approx(size, rel=1e-5)


def test_a_schedule_outside_that_counts_calls_has_used_up_its_warm_up_on_skipped_steps():
    schedule = optax.linear_schedule(0.25, 1.0, 3)
    optimizer = loss_scaled(optax.scale_by_schedule(schedule), loss_scale.static(8.0))
    state = optimizer.init({"w": jnp.ones(1)})
    for call in range(4):
        updates, state = optimizer.update({"w": jnp.array([INF if call < 3 else 8.0])}, state)
    assert float(updates["w"][0]) == 0.25
    assert float(schedule(call)) == 1.0


# Accumulation


def test_a_window_takes_one_step_of_the_sum_and_checks_once():
    optimizer, step = stepper(LossScaleConfig(growth_interval=2), 3)
    once, once_step = stepper(LossScaleConfig(growth_interval=2))
    params, state = PARAMS, optimizer.init(PARAMS)
    expected, expected_state = PARAMS, once.init(PARAMS)
    for _ in range(2):
        for value in (1.0, 2.0, 4.0):
            before, scale = params, float(find(state).scale)
            params, state, _ = step(params, state, gradient(value * 65536.0))
            if value != 4.0:
                assert bits(params) == bits(before)
                assert float(find(state).scale) == scale
        expected, expected_state, _ = once_step(expected, expected_state, gradient(7 * 65536.0))
    assert bits(params) == bits(expected)
    assert bits(find(state)) == bits(find(expected_state))
    assert float(find(state).scale) == 2.0**17


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("bad", [INF, NAN])
def test_a_bad_micro_batch_discards_its_window_and_no_other(place, bad):
    optimizer, step = stepper(LossScaleConfig(), 3)
    params, state = PARAMS, optimizer.init(PARAMS)
    for micro in range(3):
        params, state, _ = step(params, state, gradient(bad if micro == place else 1.0))
    assert bits(params) == bits(PARAMS)
    assert (int(find(state).skipped), float(find(state).scale)) == (1, 2.0**15)
    for _ in range(3):
        params, state, _ = step(params, state, gradient(1.0))
    assert int(find(state).applied) == 1
    assert bits(params) != bits(PARAMS)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, state)))


@pytest.mark.parametrize("accumulate", [0, 1.5])
def test_a_window_that_is_no_whole_number_of_calls_is_an_error(accumulate):
    with pytest.raises(ValueError, match=f"accumulate: expected 1 or more, found {accumulate}"):
        inspect.unwrap(loss_scaled)(optax.sgd(0.1), accumulate=accumulate)


@pytest.mark.parametrize("config", [DEFAULTS, loss_scale.OFF])
def test_bfloat16_parameters_may_be_accumulated_for(config):
    optimizer, params = loss_scaled(optax.adam(0.1), config, accumulate=2), {"w": jnp.ones(2)}
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = jax.jit(optimizer.update)(params, state, params)
    assert updates["w"].dtype == jnp.bfloat16
    assert int(find(state).applied) == 1


@pytest.mark.parametrize("config", [loss_scale.static(8.0), loss_scale.OFF])
def test_a_scale_that_does_not_move_has_no_numbers_for_torch(config):
    with pytest.raises(ValueError, match="mode: expected dynamic, found"):
        loss_scale.to_torch(loss_scale.init(config), config)


# What the scale may become


@settings(max_examples=200, deadline=None)
@given(
    exponent=st.integers(-126, 127),
    events=st.lists(st.sampled_from([1.0, INF, NAN]), min_size=1, max_size=40),
    interval=st.integers(1, 3),
)
def test_no_scale_is_0_inf_or_nan_and_the_check_is_of_what_is_applied(exponent, events, interval):
    scale = 2.0**exponent
    config = LossScaleConfig(growth_interval=interval, min_scale=0.0)
    update = jitted_update(config)
    state = loss_scale.init(config)._replace(scale=jnp.float32(scale))
    for event in events:
        grads, finite = jitted_unscale(state, {"w": np.float32(event)})
        assert bool(finite) == bool(np.isfinite(grads["w"]))
        state = update(state, finite)
        assert 2.0**-126 <= float(state.scale) <= 2.0**127


@functools.cache
def jitted_update(config):
    return jax.jit(functools.partial(loss_scale.update, config=config))


jitted_unscale = jax.jit(loss_scale.unscale)


def test_a_gradient_that_a_tiny_scale_blows_up_is_not_applied():
    config = LossScaleConfig(init_scale=2.0**-126, min_scale=0.0)
    optimizer, step = stepper(config)
    params, state, _ = step(PARAMS, optimizer.init(PARAMS), gradient(8.0))
    assert bits(params) == bits(PARAMS)
    assert int(find(state).skipped) == 1


def test_at_the_largest_scale_gradients_do_not_vanish():
    state = loss_scale.init(LossScaleConfig(init_scale=2.0**127))
    grads, finite = loss_scale.unscale(state, {"w": jnp.float32(2.0**127)})
    assert (float(grads["w"]), bool(finite)) == (1.0, True)


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        (LossScaleConfig(init_scale=8.0, growth_interval=2), [8.0, 16.0, 8.0, 8.0, 16.0]),
        (LossScaleConfig(init_scale=8.0, growth_interval=None), [8.0, 8.0, 4.0, 4.0, 4.0]),
        (LossScaleConfig(init_scale=8.0, min_scale=8.0, growth_interval=9), [8.0] * 5),
        (LossScaleConfig(init_scale=8.0, max_scale=8.0, growth_interval=1), [8, 8, 4, 8, 8]),
        (loss_scale.static(8.0), [8.0] * 5),
        (loss_scale.OFF, [1.0] * 5),
        (LossScaleConfig(mode="off"), [1.0] * 5),
    ],
)
def test_the_scale_after_two_good_steps_a_bad_one_and_two_good_ones(config, scales):
    state, found = loss_scale.init(config), []
    for finite in (True, True, False, True, True):
        state = loss_scale.update(state, finite, config)
        found.append(float(state.scale))
    assert found == scales
    assert (int(state.applied), int(state.skipped)) == (4, 1)


def test_static_scaling_skips_and_no_scaling_does_not():
    for config, skipped in ((loss_scale.static(8.0), 1), (loss_scale.OFF, 0)):
        optimizer, step = stepper(config)
        params, state, _ = step(PARAMS, optimizer.init(PARAMS), gradient(NAN))
        assert int(find(state).skipped) == skipped
        assert (bits(params) == bits(PARAMS)) == bool(skipped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_scale": 0.0}, "init_scale"),
        ({"init_scale": INF}, "init_scale"),
        ({"init_scale": NAN}, "init_scale"),
        ({"growth_factor": 1.0}, "growth_factor"),
        ({"backoff_factor": 1.0}, "backoff_factor"),
        ({"backoff_factor": 0.0}, "backoff_factor"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"min_scale": -1.0}, "min_scale"),
        ({"min_scale": 4.0, "max_scale": 2.0}, "max_scale"),
    ],
)
def test_settings_that_cannot_work_are_named(options, message):
    with pytest.raises(ValueError, match=f"{message}: expected .*, found"):
        LossScaleConfig(**options)


# float16


def cast_to_float16(w, x):
    return (w.astype(jnp.float16) * x).astype(jnp.float32)


@functools.partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
def scaled_gradient(state, w, x):
    """Of a float32 parameter that is used in float16."""
    return jax.grad(lambda w: loss_scale.scale_loss(state, cast_to_float16(w, x)))(w)


def test_a_gradient_of_2_overflows_at_65536_and_at_32768_and_is_applied_at_16384():
    optimizer = loss_scaled(optax.sgd(1.0))
    w, state, seen = jnp.float32(0.0), optimizer.init(jnp.float32(0.0)), []
    for _ in range(3):
        scale = float(find(state).scale)
        scaled = scaled_gradient(state, w, jnp.float16(2.0))
        updates, state = optimizer.update(scaled, state, w)
        w = optax.apply_updates(w, updates)
        seen.append((scale, float(scaled), float(w)))
    assert seen == [(65536.0, INF, 0.0), (32768.0, INF, 0.0), (16384.0, 32768.0, -2.0)]
    assert int(find(state).growth_tracker) == 1


def test_a_gradient_of_1e_8_is_0_in_float16_and_comes_back_through_the_scale():
    small = jnp.float32(1e-8)
    plain = loss_scale.init(LossScaleConfig(init_scale=1.0))
    scaled = loss_scale.init()

    @functools.partial(jax.jit, compiler_options={"xla_allow_excess_precision": False})
    def gradient(state, w):
        return jax.grad(lambda w: loss_scale.scale_loss(state, cast_to_float16(w, 1.0) * small))(w)

    assert float(gradient(plain, jnp.float32(1.0))) == 0.0
    assert float(gradient(scaled, jnp.float32(1.0))) == 6.551742553710938e-4
    grads, _ = loss_scale.unscale(scaled, gradient(scaled, jnp.float32(1.0)))
    assert float(grads) == pytest.approx(9.997166e-9, rel=1e-6)


def test_a_float16_loss_is_scaled_in_float32():
    loss = loss_scale.scale_loss(loss_scale.init(), jnp.float16(3.0))
    assert (loss.dtype, float(loss)) == (jnp.float32, 3.0 * 65536.0)


def test_float16_parameters_are_refused():
    with pytest.raises(ValueError, match="expected float32 parameters, found float16"):
        loss_scaled(optax.sgd(0.1)).init({"w": jnp.zeros(2, jnp.float16)})


# Everywhere


def test_a_step_compiles_once():
    optimizer = optimizer_of()
    step = jax.jit(optimizer.update)
    params, state = PARAMS, optimizer.init(PARAMS)
    for value in (1.0, INF, 1.0):
        _, state = step(gradient(value), state, params)
    assert step._cache_size() == 1
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(find(state)))


def test_scan_vmap_and_donation_give_what_a_loop_gives():
    events = np.array([1.0, INF, 2.0, NAN, 1.0, 1.0], np.float32)
    optimizer, step = stepper(LossScaleConfig(growth_interval=2))
    params, state = PARAMS, optimizer.init(PARAMS)
    for event in events:
        params, state, _ = step(params, state, gradient(event))

    def body(carried, event):
        grads = jax.tree.map(lambda leaf: jnp.full_like(leaf, event), PARAMS)
        updates, state = optimizer.update(grads, carried[1], carried[0])
        return (optax.apply_updates(carried[0], updates), state), None

    def run(events):
        return jax.lax.scan(body, (PARAMS, optimizer.init(PARAMS)), events)[0]

    both = jax.jit(jax.vmap(run))(jnp.stack([events, events[::-1]]))
    scanned, scanned_state = jax.tree.map(lambda leaf: leaf[0], both)
    assert relative_distance(scanned, params) <= FEW_FLOAT32_ROUNDINGS
    assert bits(find(scanned_state)) == bits(find(state))

    donated = jax.jit(optimizer.update, donate_argnums=(1,))
    held = optimizer.init(PARAMS)
    for event in events:
        _, held = donated(gradient(event), held, PARAMS)
    assert bits(find(held)) == bits(find(state))


def test_the_one_state_inside_a_larger_one_is_found_and_two_are_not():
    optimizer = optax.chain(optax.identity(), loss_scaled(optax.sgd(0.1)))
    assert float(find(optimizer.init(PARAMS)).scale) == 65536.0
    for states in ((), (loss_scale.init(), loss_scale.init())):
        with pytest.raises(ValueError, match=f"expected one LossScaleState.*found {len(states)}"):
            find(states)


# torch's five numbers


def test_a_state_goes_to_torchs_five_numbers_and_back():
    config = LossScaleConfig(init_scale=4.0, growth_interval=7, growth_factor=4.0)
    state = loss_scale.update(loss_scale.init(config), True, config)
    saved = loss_scale.to_torch(state, config)
    assert saved == {
        "scale": 4.0,
        "growth_factor": 4.0,
        "backoff_factor": 0.5,
        "growth_interval": 7,
        "_growth_tracker": 1,
    }
    loaded, loaded_config = loss_scale.from_torch(saved)
    assert (float(loaded.scale), int(loaded.growth_tracker)) == (4.0, 1)
    assert loss_scale.to_torch(loaded, loaded_config) == saved


@pytest.mark.parametrize("saved", [{}, {"scale": 2.0}])
def test_the_state_of_a_disabled_scaler_is_refused(saved):
    with pytest.raises(ValueError, match="five numbers of an enabled scaler"):
        loss_scale.from_torch(saved)


@pytest.mark.parametrize("scale", [0.0, 2.0**-130, INF])
def test_a_scale_that_torch_itself_does_not_come_back_from_is_refused(scale):
    saved = loss_scale.to_torch(loss_scale.init(), LossScaleConfig()) | {"scale": scale}
    with pytest.raises(ValueError, match="init_scale: expected"):
        loss_scale.from_torch(saved)


# The alarm


def test_the_alarm_is_raised_where_the_smallest_scale_overflows_too():
    config = LossScaleConfig(init_scale=8.0, min_scale=2.0)
    state, found = loss_scale.init(config), []
    for finite in (False, True, False, False, True, False):
        state = loss_scale.update(state, finite, config)
        found.append(loss_scale.alarm(state, max_skips=9))
    at_floor = "the last 2 steps were skipped, down to the smallest loss scale, 2"
    assert found[:3] == [None, None, None]
    assert found[3] == at_floor
    assert found[4] is None


def test_the_alarm_is_raised_after_too_many_skips_in_a_row():
    config = loss_scale.static(8.0)
    state = loss_scale.init(config)
    for skips in (1, 2, 3):
        state = loss_scale.update(state, False, config)
        expected = "the last 3 steps were skipped; the loss scale is 8"
        assert loss_scale.alarm(state, max_skips=3) == (None if skips < 3 else expected)


# Devices


def on_eight_devices():
    """Scale, parameters and decision after a gradient with an inf on one of eight devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    rows, whole = (
        jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for axes in (("rows",), ())
    )
    optimizer = loss_scaled(optax.adam(0.1))
    params = {"w": np.ones((8, 4), np.float32)}
    place = {"w": rows}
    step = jax.jit(
        optimizer.update, in_shardings=(place, whole, place), out_shardings=(place, whole)
    )
    state, found = optimizer.init(params), []
    for bad in (None, 5):
        scaled = {"w": np.ones((8, 4), np.float32)}
        if bad is not None:
            scaled["w"][bad, 2] = np.inf
        updates, state = step(scaled, state, params)
        shards = [float(shard.data) for shard in find(state).scale.addressable_shards]
        found.append([shards, bool(np.all(updates["w"] == 0.0)), int(find(state).applied)])
    return found


def test_an_inf_on_one_of_eight_devices_skips_the_step_on_all():
    assert printed_by(__file__, devices=8) == [[[65536.0] * 8, False, 1], [[32768.0] * 8, True, 1]]


if __name__ == "__main__":
    print(json.dumps(on_eight_devices()))
