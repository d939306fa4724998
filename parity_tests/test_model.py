"""Both taggers: what a token's logits depend on, and what they must not.

Every cell of ``PACKED`` has a word of its own, padding cells included, so that the gradient of the
word table says, row by row, which cells a token's logits depend on.
"""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tolerances import PACKING_LOGITS, PADDING_LOGITS

from jaxtag.batch import Batch
from jaxtag.config import ConfigError, ModelConfig
from jaxtag.encode import PARTS
from jaxtag.model import Dropout, Sizes, build
from jaxtag.precision import Policy

WORDS, PART_ROWS, C = 131, 37, 5  # no other axis of a parameter is as long
B, L = 8, 8
LENGTHS = [1, 2, 3, 5, 6, 7, 8, 4]
MODELS = [
    ("bilstm", "none"),
    ("bilstm", "affixes"),
    ("transformer", "none"),
    ("transformer", "characters"),
]
WITH_PARTS = [(kind, parts) for kind, parts in MODELS if parts != "none"]


def sizes_of(parts):
    return Sizes(words=WORDS, kind=parts, parts=PART_ROWS, classes=C)


def model_of(kind, parts, *, policy="float32"):
    layers = 2 if (kind, parts) == ("bilstm", "none") else 1
    config = ModelConfig(kind=kind, width=8, layers=layers, heads=2, feed_forward=16, dropout=0.5)
    return build(config, Policy(policy), sizes_of(parts))


def batch_of(sentences, parts, *, rows, length):
    """Rows of sentences, each a range of word ids, one behind the other, then padding."""
    shape = (rows, length)
    ids_BL, segments_BL, positions_BL = (np.zeros(shape, np.int32) for _ in range(3))
    for row, members in enumerate(sentences):
        start = 0
        for segment, words in enumerate(members, 1):
            cells = slice(start, start + len(words))
            ids_BL[row, cells] = words
            segments_BL[row, cells] = segment
            positions_BL[row, cells] = np.arange(len(words))
            start += len(words)
    # Parts are a function of the word, and each word has between one and seven of them.
    places_W = np.arange(PARTS[parts])
    parts_BLW = 1 + (ids_BL[..., None] * 7 + places_W * 3) % (PART_ROWS - 1)
    parts_BLW = np.where(
        (places_W <= ids_BL[..., None] % 7) & (ids_BL[..., None] > 0), parts_BLW, 0
    )
    return Batch(
        ids_BL=jnp.asarray(ids_BL),
        parts_BLW=jnp.asarray(parts_BLW, jnp.int32),
        labels_BL=jnp.asarray(np.where(segments_BL > 0, ids_BL % C, -100), jnp.int32),
        segments_BL=jnp.asarray(segments_BL),
        positions_BL=jnp.asarray(positions_BL),
    )


def sentences_of(lengths):
    """Sentences of the given lengths in which no word occurs twice."""
    ends = 1 + np.cumsum(lengths)
    return [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def word_table(tree):
    """The table with a row for each word, found by its size."""
    (table_VD,) = (leaf for leaf in jax.tree.leaves(tree) if leaf.shape[0] == WORDS)
    return table_VD


def params_of(model):
    """Parameters of the order of 1, so that logits are too; row 0 of each table is zero."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(leaf.dtype), shapes)
    for table_VD in tables(params):
        table_VD[0] = 0.0
    return params


def tables(tree):
    """The tables of words and of parts, found by their sizes."""
    return [leaf for leaf in jax.tree.leaves(tree) if leaf.shape[0] in (WORDS, PART_ROWS)]


def key_of(seed):
    """A key of the generator whose programs compile fastest."""
    return jax.random.key(seed, impl="rbg")


class Case:
    """A model with parameters, and its functions compiled."""

    def __init__(self, kind, parts):
        self.kind, self.parts = kind, parts
        self.model = model_of(kind, parts)
        self.params = params_of(self.model)
        self.apply = jax.jit(self.model.apply)
        self.gradient = jax.jit(jax.grad(self._weighted_logits))

    def _weighted_logits(self, params, batch, weight_BL):
        return jnp.sum(self.model.apply(params, batch) * weight_BL[..., None])

    def logits(self, sentences, *, rows=B, length=L):
        return np.asarray(
            self.apply(self.params, batch_of(sentences, self.parts, rows=rows, length=length))
        )


case_of = functools.cache(Case)


@pytest.fixture(params=MODELS, ids="-".join)
def case(request):
    return case_of(*request.param)


# Shapes and dtypes


def test_logits_are_float32_of_every_class_for_every_cell(case):
    logits_BLC = case.logits([[words] for words in sentences_of(LENGTHS)])
    assert logits_BLC.shape == (B, L, C)
    assert logits_BLC.dtype == np.float32


def test_logits_are_finite_in_padding_and_in_empty_rows_too(case):
    assert np.all(np.isfinite(case.logits([[words] for words in sentences_of(LENGTHS[:3])])))


@pytest.mark.parametrize(("kind", "parts"), MODELS)
def test_parameters_and_logits_stay_float32_when_products_are_bfloat16(kind, parts):
    model = model_of(kind, parts, policy="bfloat16")
    batch = batch_of([], parts, rows=B, length=L)
    params = jax.eval_shape(model.init, jax.random.key(0))
    logits_BLC = jax.eval_shape(model.apply, params, batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert (logits_BLC.shape, logits_BLC.dtype) == ((B, L, C), jnp.float32)


def products(jaxpr):
    """Every matrix product, those of inner programs included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation
        for inner in jax.tree.leaves(list(equation.params.values())):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                yield from products(getattr(inner, "jaxpr", inner))


@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_products_are_of_numbers_of_the_policys_type_and_float32_ones_keep_all_digits(case, policy):
    batch = batch_of([], case.parts, rows=B, length=L)
    model = model_of(case.kind, case.parts, policy=policy)
    found = list(products(jax.make_jaxpr(model.apply)(case.params, batch).jaxpr))
    assert len(found) >= 5
    for product in found:
        assert [operand.aval.dtype for operand in product.invars] == [policy, policy]
        if policy == "float32":
            assert set(product.params["precision"]) == {jax.lax.Precision.HIGHEST}


def test_the_float32_policy_asks_for_the_highest_precision_and_no_other(case):
    batch = batch_of([], case.parts, rows=B, length=L)
    for policy, asked in (("float32", True), ("bfloat16", False)):
        model = model_of(case.kind, case.parts, policy=policy)
        assert ("HIGHEST" in str(jax.make_jaxpr(model.apply)(case.params, batch))) == asked


def test_under_bfloat16_attention_scores_and_logits_are_not_rounded_to_it(case):
    batch = batch_of([], case.parts, rows=B, length=L)
    model = model_of(case.kind, case.parts, policy="bfloat16")
    found = list(products(jax.make_jaxpr(model.apply)(case.params, batch).jaxpr))
    shapes = [
        product.outvars[0].aval.shape
        for product in found
        if product.params["preferred_element_type"] == jnp.float32
    ]
    scores = [(B, 2, L, L)] if case.kind == "transformer" else []
    assert shapes == [*scores, (B, L, C)]


# Padding


def test_longer_rows_change_no_logits(case):
    sentences = [[words] for words in sentences_of(LENGTHS)]
    short_BLC, long_BLC = case.logits(sentences), case.logits(sentences, length=16)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(
            long_BLC[row, :length], short_BLC[row, :length], rtol=0, atol=PADDING_LOGITS[case.kind]
        )


def test_more_rows_change_no_logits(case):
    sentences = [[words] for words in sentences_of(LENGTHS)]
    few_BLC, many_BLC = case.logits(sentences), case.logits(sentences, rows=16)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_allclose(
            many_BLC[row, :length], few_BLC[row, :length], rtol=0, atol=PADDING_LOGITS[case.kind]
        )


def test_what_stands_in_other_rows_and_in_padding_changes_no_bit(case):
    batch = batch_of([[words] for words in sentences_of(LENGTHS)], case.parts, rows=B, length=L)
    own_BL = (np.arange(B)[:, None] == 3) & (batch.segments_BL > 0)
    changed = batch._replace(
        ids_BL=jnp.where(own_BL, batch.ids_BL, 99),
        parts_BLW=jnp.where(own_BL[..., None], batch.parts_BLW, 9),
        positions_BL=jnp.where(own_BL, batch.positions_BL, 5),
    )
    before_BLC, after_BLC = (case.apply(case.params, b) for b in (batch, changed))
    np.testing.assert_array_equal(before_BLC[3, : LENGTHS[3]], after_BLC[3, : LENGTHS[3]])


# Packing

PACKED = [[2, 3, 1], [8], [1, 1, 1, 1], [3, 4], [4, 4], [5], [7, 1], []]


def packed_batch(parts):
    """Rows as ``PACKED`` says, in which padding cells have words of their own too."""
    batch = batch_of(packed_sentences(), parts, rows=B, length=L)
    own = jnp.arange(1, 1 + B * L).reshape(B, L)
    parts_BLW = jnp.where(batch.ids_BL[..., None] > 0, batch.parts_BLW, 5)
    return batch._replace(ids_BL=own + 64 * (batch.segments_BL == 0), parts_BLW=parts_BLW)


def packed_sentences():
    words = iter(sentences_of([length for row in PACKED for length in row]))
    return [[next(words) for _ in row] for row in PACKED]


def test_sentences_that_share_a_row_have_the_logits_that_each_has_alone(case):
    packed = packed_sentences()
    packed_BLC = case.logits(packed)
    alone = [words for row in packed for words in row]
    alone_BLC = case.logits([[words] for words in alone], rows=16)
    assert len(alone) <= 16
    together = [
        packed_BLC[row, start : start + length]
        for row, lengths in enumerate(PACKED)
        for start, length in zip(np.cumsum([0, *lengths]), lengths, strict=False)
    ]
    for number, (words, found_LC) in enumerate(zip(alone, together, strict=True)):
        np.testing.assert_allclose(
            found_LC, alone_BLC[number, : len(words)], rtol=0, atol=PACKING_LOGITS[case.kind]
        )


@pytest.mark.parametrize(("row", "cell"), [(0, 0), (0, 1), (0, 3), (0, 5), (1, 4), (4, 7), (5, 4)])
def test_a_tokens_logits_depend_on_all_cells_of_its_sentence_and_on_no_other(case, row, cell):
    batch = packed_batch(case.parts)
    weight_BL = np.zeros((B, L), np.float32)
    weight_BL[row, cell] = 1.0
    grad_VD = np.asarray(word_table(case.gradient(case.params, batch, weight_BL)))
    segments_BL = np.asarray(batch.segments_BL)
    own_BL = segments_BL == segments_BL[row, cell]
    own_BL[np.arange(B) != row] = False
    own_words = np.asarray(batch.ids_BL)[own_BL]
    read_V = np.any(grad_VD != 0, axis=1)
    np.testing.assert_array_equal(np.flatnonzero(read_V), np.sort(own_words))


# The padding row of every table


@pytest.mark.parametrize(("kind", "parts"), WITH_PARTS)
def test_row_zero_of_every_table_receives_no_gradient_and_is_still_zero_after_a_hundred_adamw_steps(
    kind, parts
):
    case = case_of(kind, parts)
    batch = batch_of(packed_sentences(), case.parts, rows=B, length=L)
    optimizer = optax.adamw(1e-2, weight_decay=0.1)  # no mask: everything decays
    update = jax.jit(optimizer.update)
    # Padding cells take part in what is differentiated, so that a leak would show.
    weight_BL = np.linspace(-1.0, 1.0, B * L, dtype=np.float32).reshape(B, L)
    params, opt_state = case.params, optimizer.init(case.params)
    for _ in range(100):
        grads = case.gradient(params, batch, weight_BL)
        for grad_VD in tables(grads):
            assert not np.any(grad_VD[0])
        updates, opt_state = update(grads, opt_state, params)
        params = jax.tree.map(np.add, params, updates)
    for before_VD, table_VD in zip(tables(case.params), tables(params), strict=True):
        assert not np.any(table_VD[0])
        assert np.any(before_VD[1:] != table_VD[1:])


# Randomness


@pytest.mark.parametrize(("kind", "parts"), WITH_PARTS)
def test_dropout_is_a_function_of_its_key(kind, parts):
    case = case_of(kind, parts)
    batch = batch_of([[words] for words in sentences_of(LENGTHS)], case.parts, rows=B, length=L)
    first, again, other = (
        np.asarray(case.apply(case.params, batch, key_of(seed))) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


def test_each_place_drops_something_else_and_always_the_same():
    dropout, ones_LD = Dropout(0.5, key_of(0)), jnp.ones((16, 16))
    places = [dropout.at(0), dropout.at(1), dropout.at(0).at(0), dropout.at(0).at(1)]
    masks = [np.asarray(place(ones_LD)) for place in places]
    assert {value for mask in masks for value in np.unique(mask)} == {0.0, 2.0}
    for (i, one), (j, other) in itertools.combinations(enumerate(masks), 2):
        assert np.any(one != other), (i, j)
    np.testing.assert_array_equal(masks[1], dropout.at(1)(ones_LD))


@pytest.mark.parametrize(("rate", "key"), [(0.5, None), (0.0, 3)])
def test_without_a_key_or_a_rate_nothing_is_dropped(rate, key):
    dropout = Dropout(rate, None if key is None else key_of(key))
    ones_LD = jnp.ones((4, 4))
    assert dropout.at(1).at(2)(ones_LD) is ones_LD


def test_without_a_key_nothing_random_is_computed(case):
    batch = batch_of([], case.parts, rows=B, length=L)
    with_key = jax.make_jaxpr(case.model.apply)(case.params, batch, jax.random.key(0))
    without = jax.make_jaxpr(case.model.apply)(case.params, batch)
    assert "random_bits" in str(with_key)
    assert "random" not in str(without)


@pytest.fixture(scope="module", params=WITH_PARTS, ids="-".join)
def initial(request):
    """First parameters for the keys 3, 3 and 4."""
    init = jax.jit(model_of(*request.param).init)
    return [init(key_of(seed)) for seed in (3, 3, 4)]


def test_first_parameters_are_a_function_of_the_key(initial):
    first, again, other = initial
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert np.any(np.asarray(word_table(first)) != np.asarray(word_table(other)))


def test_at_first_row_zero_of_every_table_is_zero_and_no_other_is(initial):
    for table_VD in tables(initial[0]):
        np.testing.assert_array_equal(np.flatnonzero(~np.any(table_VD, axis=1)), [0])


# Settings


@pytest.mark.parametrize(
    ("kind", "width", "heads"), [("bilstm", 7, 1), ("transformer", 7, 1), ("transformer", 8, 3)]
)
def test_a_width_that_heads_or_directions_do_not_divide_is_refused(kind, width, heads):
    with pytest.raises(ConfigError, match=rf"model\.width: expected .*, found {width}"):
        ModelConfig(kind=kind, width=width, heads=heads)


def test_an_unknown_kind_is_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match="expected bilstm or transformer, found 'crf'"):
        build(ModelConfig(kind="crf"), Policy("float32"), sizes_of("none"))
