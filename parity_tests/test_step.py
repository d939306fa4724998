"""Training, evaluation and prediction steps: parts that add up, nothing counted twice or kept."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distances import relative_distance
from tolerances import BFLOAT16_LOSS_RELATIVE, FEW_FLOAT32_ROUNDINGS, PARTITION_RELATIVE

from jaxtag import losses, model, optim, step
from jaxtag.batch import Batch
from jaxtag.config import ModelConfig, TrainConfig
from jaxtag.device import local_devices
from jaxtag.loss_scale import loss_scaled
from jaxtag.precision import Policy

WORDS, C = 30, 3
KINDS = ["bilstm", "transformer"]
UNEVEN = [[1], [3], [8, 8], [8, 8, 8, 8]]  # tokens of the sentences of four micro-batches


def recipe_of(kind, *, dropout=0.0, policy="float32", seed=0):
    config = ModelConfig(kind=kind, width=8, heads=2, feed_forward=16, dropout=dropout)
    sizes = model.Sizes(words=WORDS, kind="none", parts=1, classes=C)
    train = TrainConfig(lr=0.05, warmup=0.0, weight_decay=0.1)
    schedule = optim.schedule(train, total_steps=100)
    return step.Recipe(
        model.build(config, Policy(policy), sizes),
        optim.build(train, schedule),
        schedule,
        seed=seed,
    )


def table_recipe(*, dropout=False, **options):
    """A model that is one matrix, a row of logits for each word: cheap to compile."""
    train = TrainConfig(lr=0.05, warmup=0.0, weight_decay=0.1)
    schedule = optim.schedule(train, total_steps=100)

    def init(key):
        return {"kernel": jax.random.normal(key, (WORDS, C))}

    def apply(params, batch, dropout_key=None):
        logits_BLC = params["kernel"][batch.ids_BL]
        if dropout and dropout_key is not None:
            keep_BLC = jax.random.bernoulli(dropout_key, 0.5, logits_BLC.shape)
            logits_BLC = jnp.where(keep_BLC, logits_BLC, 0.0)
        return logits_BLC

    return step.Recipe(model.Model(init, apply), optim.build(train, schedule), schedule, **options)


def batch_of(lengths, *, rows=8, length=8, seed=0):
    """One sentence a row, in which the word says the label; then empty rows."""
    rng = np.random.default_rng(seed)
    positions_BL = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    ends_B1 = np.zeros((rows, 1), np.int32)
    ends_B1[: len(lengths), 0] = lengths
    token_BL = positions_BL < ends_B1
    ids_BL = np.where(token_BL, rng.integers(1, WORDS, (rows, length)), 0).astype(np.int32)
    return Batch(
        ids_BL=ids_BL,
        parts_BLW=np.zeros((rows, length, 0), np.int32),
        labels_BL=np.where(token_BL, ids_BL % C, -100).astype(np.int32),
        segments_BL=token_BL.astype(np.int32),
        positions_BL=np.where(token_BL, positions_BL, 0),
    )


def tokens_of(*batches):
    return np.float32(sum(np.sum(batch.labels_BL != -100) for batch in batches))


def bits(tree):
    """Every leaf's bytes, copied: arrays that are donated later must not be looked at."""
    return [np.array(leaf, copy=True).tobytes() for leaf in jax.tree.leaves(tree)]


def first_state(recipe):
    """As ``step.init_state``, but drawn by numpy, which need not be compiled."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(recipe.model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(leaf.dtype), shapes)
    return step.TrainState(
        params,
        jax.device_get(loss_scaled(recipe.optimizer, recipe.scaling).init(params)),
        np.int32(0),
    )


class Trainer:
    """A recipe, its programs on one device, and fresh states for them."""

    def __init__(self, recipe):
        self.recipe = recipe
        self.devices = local_devices(8, count=1)
        self.programs = step.train_programs(recipe, self.devices)
        self.first = first_state(recipe)

    def fresh(self):
        return self.devices.replicate(self.first)

    def train(self, state, batch, count=None):
        count = tokens_of(batch) if count is None else count
        return self.programs.train(state, self.devices.shard(batch), count)

    def accumulate(self, state, batches, count):
        """The summed gradient of micro-batches, and their sums."""
        gradient, sums = self.programs.zeros(state.params), []
        for number, batch in enumerate(batches):
            gradient, part = self.programs.accumulate(
                state, gradient, self.devices.shard(batch), count, np.int32(number)
            )
            sums.append(part)
        return gradient, sums


@functools.cache
def trainer_of(kind):
    return Trainer(table_recipe() if kind == "table" else recipe_of(kind))


@functools.cache
def gradient_of(kind):
    """The gradient without dropout, compiled."""
    recipe = trainer_of(kind).recipe
    return jax.jit(lambda params, batch, count: step.gradient(recipe, params, batch, count, None))


def micro_batches():
    """Four micro-batches of 1, 3, 16 and 32 tokens, and the batch of all their sentences."""
    owner = [number for number, lengths in enumerate(UNEVEN) for _ in lengths]
    lengths = [length for lengths in UNEVEN for length in lengths]
    # The same seed gives a row the same words in every batch.
    micro = [batch_of(np.where(np.equal(owner, number), lengths, 0)) for number in range(4)]
    return micro, batch_of(lengths)


# Parts that add up


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_uneven_micro_batches_add_up_to_that_of_the_one_large_batch(kind):
    micro, large = micro_batches()
    params, count = trainer_of(kind).first.params, tokens_of(large)
    parts = [gradient_of(kind)(params, batch, count) for batch in micro]
    expected, whole = gradient_of(kind)(params, large, count)
    added = jax.tree.map(lambda *leaves: sum(leaves), *(grads for grads, _ in parts))
    assert relative_distance(added, expected) <= PARTITION_RELATIVE
    sums = jax.tree.map(lambda *leaves: sum(leaves), *(sums for _, sums in parts))
    assert float(sums.loss.total) == pytest.approx(
        float(whole.loss.total), rel=FEW_FLOAT32_ROUNDINGS
    )
    assert sums.tokens == whole.tokens
    assert int(sums.loss.count) == int(whole.loss.count) == count == 52


def test_the_accumulate_and_apply_programs_take_the_step_of_the_one_large_batch():
    trainer = trainer_of("table")
    micro, large = micro_batches()
    count = tokens_of(large)
    state = trainer.fresh()
    gradient, _ = trainer.accumulate(state, micro, count)
    expected, _ = gradient_of("table")(trainer.first.params, large, count)
    assert relative_distance(gradient, expected) <= PARTITION_RELATIVE
    accumulated = trainer.programs.apply(state, gradient, count)
    once = jax.jit(functools.partial(step.apply_gradient, trainer.recipe))(
        trainer.first, expected, count
    )
    assert int(accumulated.step) == int(once.step) == 1
    # Adam's first moments are linear in the gradient; its steps have no size of their own.
    moments = accumulated.opt_state.inner, once.opt_state.inner
    assert relative_distance(*moments) <= PARTITION_RELATIVE


def test_the_loss_that_is_differentiated_is_the_mean_over_weights_with_class_weights():
    weights_C = np.array([0.5, 2.0, 4.0], np.float32)
    recipe = table_recipe(class_weights_C=weights_C, label_smoothing=0.1)
    params = recipe.model.init(jax.random.key(0))
    micro, large = micro_batches()
    count = losses.loss_count(jnp.asarray(large.labels_BL), jnp.asarray(weights_C))
    part = jax.jit(lambda batch: step.gradient(recipe, params, batch, count, None)[0])
    added = jax.tree.map(lambda *leaves: sum(leaves), *map(part, micro))

    def mean(params):
        loss = losses.masked_token_loss(
            params["kernel"][large.ids_BL],
            jnp.asarray(large.labels_BL),
            class_weights_C=jnp.asarray(weights_C),
            label_smoothing=0.1,
        )
        return loss.mean()

    assert relative_distance(added, jax.jit(jax.grad(mean))(params)) <= PARTITION_RELATIVE


# A step without a token


@pytest.mark.parametrize("kind", ["bilstm", "table"])
def test_a_batch_whose_labels_are_all_ignored_changes_no_bit_of_the_state(kind):
    trainer = trainer_of(kind)
    state = trainer.fresh()
    for seed in range(2):
        state, _ = trainer.train(state, batch_of([8, 5, 3], seed=seed))
    before = bits(state)
    assert all(any(leaf) for leaf in bits((state.params, state.opt_state.inner, state.step)))
    batch = batch_of([8, 5, 3])
    ignored = batch._replace(labels_BL=np.full_like(batch.labels_BL, -100))
    state, sums = trainer.train(state, ignored)
    assert bits(state) == before
    assert (float(sums.loss.total), int(sums.loss.count), int(sums.tokens.total)) == (0.0, 0, 0)


def test_micro_batches_whose_labels_are_all_ignored_change_no_bit_of_the_state():
    trainer = trainer_of("table")
    state, _ = trainer.train(trainer.fresh(), batch_of([8, 5, 3]))
    before = bits(state)
    empty = batch_of([])
    gradient, _ = trainer.accumulate(state, [empty, empty], tokens_of(empty))
    assert bits(trainer.programs.apply(state, gradient, tokens_of(empty))) == before


# Randomness


def test_dropout_is_a_function_of_seed_step_and_micro_batch():
    recipes = [table_recipe(seed=seed) for seed in (0, 1)]
    keys = {
        (seed, count, micro): tuple(
            jax.random.key_data(step.dropout_key(recipes[seed], jnp.int32(count), micro)).tolist()
        )
        for seed in (0, 1)
        for count in (0, 1)
        for micro in (0, 1)
    }
    assert len(set(keys.values())) == len(keys)
    again = step.dropout_key(table_recipe(seed=1), jnp.int32(1), jnp.int32(1))
    assert tuple(jax.random.key_data(again).tolist()) == keys[1, 1, 1]


def test_the_same_seed_and_step_drop_the_same_and_another_step_something_else():
    trainer = Trainer(table_recipe(dropout=True))
    batch = batch_of([8, 5, 3])
    (first, sums), (again, sums_again) = (trainer.train(trainer.fresh(), batch) for _ in range(2))
    assert bits((first, sums)) == bits((again, sums_again))
    later = trainer.fresh()._replace(step=trainer.devices.replicate(jnp.int32(7)))
    _, sums_later = trainer.train(later, batch)
    assert float(sums_later.loss.total) != float(sums.loss.total)


def test_the_first_parameters_are_a_function_of_the_seed():
    first, again, other = (step.init_state(table_recipe(seed=seed)) for seed in (1, 1, 2))
    assert int(first.step) == 0
    assert bits(first) == bits(again)
    assert bits(first.params) != bits(other.params)


def test_the_first_parameters_and_dropout_have_streams_of_their_own():
    recipe = table_recipe(seed=3)
    stream = jax.random.fold_in(jax.random.key(3), 0)
    assert bits(step.init_state(recipe).params) == bits(recipe.model.init(stream))
    dropout = [step.dropout_key(recipe, jnp.int32(count), 0) for count in range(3)]
    keys = [tuple(jax.random.key_data(key).tolist()) for key in [stream, *dropout]]
    assert len(set(keys)) == 4


# Learning


@pytest.mark.parametrize("kind", KINDS)
def test_thirty_steps_learn_a_batch_by_heart(kind):
    trainer = trainer_of(kind)
    batch = batch_of([8, 5, 3, 6, 7])
    state, trained = trainer.fresh(), []
    for _ in range(30):
        state, sums = trainer.train(state, batch)
        trained.append(float(sums.loss.mean()))
    assert trained[-1] < 0.1 * trained[0]
    assert int(sums.tokens.correct) == int(sums.tokens.total) == 29
    assert int(state.step) == 30


def test_bfloat16_trains_float32_parameters_with_a_loss_near_float32s():
    trainers = {
        "float32": trainer_of("bilstm"),
        "bfloat16": Trainer(recipe_of("bilstm", policy="bfloat16")),
    }
    batch, found = batch_of([8, 5, 3, 6, 7]), {}
    for policy, trainer in trainers.items():
        state = trainer.fresh()
        for _ in range(3):
            state, sums = trainer.train(state, batch)
        assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
        assert sums.loss.total.dtype == jnp.float32
        found[policy] = float(sums.loss.mean())
    assert found["bfloat16"] == pytest.approx(found["float32"], rel=BFLOAT16_LOSS_RELATIVE)
    assert found["bfloat16"] != found["float32"]


# Evaluation and prediction


def test_evaluation_gives_the_sums_by_hand_and_the_first_best_class():
    params = {"kernel": jnp.zeros((WORDS, C)).at[1].set(jnp.log(jnp.array([0.25, 0.5, 0.25])))}
    batch = batch_of([3, 1])._replace(ids_BL=np.zeros((8, 8), np.int32))
    batch.ids_BL[0, :3] = [1, 1, 2]  # word 2 has three equal logits
    batch.labels_BL[0, :3] = [1, 0, 0]
    batch.ids_BL[1, 0], batch.labels_BL[1, 0] = 2, 2
    devices = local_devices(8, count=1)
    table = table_recipe(class_weights_C=np.full(C, 9.0, np.float32), label_smoothing=0.5).model
    sums, best_BL = step.eval_program(table, devices)(params, devices.shard(batch))
    expected = np.log(2) + np.log(4) + 2 * np.log(3)
    assert float(sums.loss.total) == pytest.approx(expected, rel=FEW_FLOAT32_ROUNDINGS)
    assert (int(sums.loss.count), int(sums.tokens.correct), int(sums.tokens.total)) == (4, 2, 4)
    assert best_BL.dtype == jnp.int32
    assert best_BL[0, :3].tolist() == [1, 1, 0]
    assert best_BL[1, 0] == 0


def test_evaluation_and_prediction_give_the_argmax_of_the_logits():
    trainer = trainer_of("table")
    params, devices = trainer.first.params, trainer.devices
    batch = devices.shard(batch_of([8, 5, 3, 6, 7]))
    tagger = trainer.recipe.model
    expected_BL = np.argmax(tagger.apply(params, batch), axis=-1)
    _, evaluated_BL = step.eval_program(tagger, devices)(params, batch)
    predicted_BL = step.predict_program(tagger, devices)(params, batch)
    np.testing.assert_array_equal(evaluated_BL, expected_BL)
    np.testing.assert_array_equal(predicted_BL, expected_BL)


# Compiling


def test_every_program_compiles_once_for_a_shape_however_often_it_runs():
    trainer = Trainer(table_recipe())
    programs, devices = trainer.programs, trainer.devices
    evaluate = step.eval_program(trainer.recipe.model, devices)
    predict = step.predict_program(trainer.recipe.model, devices)
    state, shapes = trainer.fresh(), (4, 8)
    for _ in range(3):
        for length in shapes:
            for lengths in ([4, 3], [1], []):
                batch = batch_of(lengths, length=length)
                state, _ = trainer.train(state, batch)
                gradient, _ = trainer.accumulate(state, [batch, batch], 2 * tokens_of(batch))
                state = programs.apply(state, gradient, 2 * tokens_of(batch))
                evaluate(state.params, devices.shard(batch))
                predict(state.params, devices.shard(batch))
    compiled = {
        "train": programs.train,
        "accumulate": programs.accumulate,
        "evaluate": evaluate,
        "predict": predict,
    }
    for name, program in compiled.items():
        assert program._cache_size() == len(shapes), name
    assert programs.zeros._cache_size() == programs.apply._cache_size() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_compiles_once_for_a_shape_too(kind):
    trainer = trainer_of(kind)  # all that run its training step give it batches of one shape
    state = trainer.fresh()
    for lengths in ([8, 5], [1], []):
        state, _ = trainer.train(state, batch_of(lengths))
    assert trainer.programs.train._cache_size() == 1
