"""Bad labels, and batches in which no label counts: what torch does, or what jit can do instead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from loss_cases import OPTIONS, Worst, bits_apart, class_weights, draw, loss_and_gradient
from torch_losses import torch_loss_and_gradient

import torch_ref.losses
from jaxtag.losses import count_bad_labels, loss_count, masked_token_loss, token_loss
from jaxtag.metrics import token_counts

pytestmark = pytest.mark.parity

C = 5
LABELS = (*range(-C - 2, C + 3), -101, -100, -99, 127, 156, 255, 256, 2**31 - 1, -(2**31))
IGNORED = (-100, -1, 0, C, 255)


def torch_raises(label, ignore_index, dtype=torch.long):
    try:
        torch.nn.functional.cross_entropy(
            torch.zeros(1, C), torch.tensor([label], dtype=dtype), ignore_index=ignore_index
        )
    except (IndexError, UnicodeDecodeError):  # the latter over its own message for uint8
        return True
    return False


def raises(label, ignore_index, dtype=jnp.int32):
    try:
        token_loss(jnp.zeros((1, 1, C)), jnp.array([[label]], dtype), ignore_index=ignore_index)
    except IndexError:
        return True
    return False


def is_bad(label, ignore_index):
    return label != ignore_index and not 0 <= label < C


@pytest.mark.parametrize("ignore_index", IGNORED)
def test_the_labels_that_raise_are_those_for_which_torch_does(parity, ignore_index):
    found = [label for label in LABELS if raises(label, ignore_index)]
    assert found == [label for label in LABELS if is_bad(label, ignore_index)]
    expected = [label for label in LABELS if torch_raises(label, ignore_index)]
    parity.check(
        "13",
        len(set(found) ^ set(expected)),
        case=f"raised, ignore_index {ignore_index}",
        cases=len(LABELS),
    )


def test_labels_of_uint8_raise_where_torch_does(parity):
    worst = Worst(parity)
    for label in (0, C - 1, C, 127, 128, 156, 255):  # -100 as uint8 is 156
        for ignore_index in (-100, 255):
            expected = torch_raises(label, ignore_index, torch.uint8)
            found = raises(label, ignore_index, jnp.uint8)
            worst.see("13", found != expected, f"raised, uint8 {label}")
    worst.check()


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.int16, jnp.uint16, jnp.uint32])
def test_labels_of_every_integer_type_are_what_they_are_as_int32(parity, dtype):
    limits, num_classes = np.iinfo(dtype), 300
    # The last becomes -100 or -1, or a class, where it is cast the wrong way.
    labels = [0, 44, 100, limits.max - 99, limits.max]
    wide_BL = np.minimum(np.array([labels]), 2**31 - 1).astype(np.int32)
    logits_BLC = jnp.array(draw(1, len(labels), num_classes)[0])
    found = loss_and_gradient(logits_BLC, np.array([labels], dtype))
    expected = loss_and_gradient(logits_BLC, wide_BL)
    value = sum(bits_apart(a, b) for a, b in zip(found, expected, strict=True))
    value += abs(int(token_counts(logits_BLC, jnp.array([labels], dtype)).total) - len(labels))
    value += int(count_bad_labels(jnp.array([labels], dtype), num_classes)) != sum(
        label >= num_classes for label in labels
    )
    parity.check("13", value, case=f"labels of {np.dtype(dtype)}", cases=len(labels))


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("ignore_index", IGNORED)
def test_inside_jit_loss_and_gradient_of_bad_labels_are_nan_or_ignored(
    parity, ignore_index, option
):
    weights_C, smoothing = class_weights(C, option), OPTIONS[option][1]
    labels_BL = np.array([LABELS], np.int32)
    bad_BL = np.array([[is_bad(label, ignore_index) for label in LABELS]])
    logits_BLC = np.round(np.linspace(-8, 8, labels_BL.size * C) ** 3 % 7, 2).astype(np.float32)
    logits_BLC = logits_BLC.reshape(*labels_BL.shape, C)
    expected = torch_loss_and_gradient(
        logits_BLC,
        np.where(bad_BL, ignore_index, labels_BL),
        weights_C,
        smoothing,
        ignore_index=ignore_index,
    )
    options = {"ignore_index": ignore_index, "label_smoothing": smoothing}
    ignored = loss_and_gradient(logits_BLC, labels_BL, weights_C, bad_labels="ignore", **options)
    poisoned = loss_and_gradient(logits_BLC, labels_BL, weights_C, **options)
    value = 0
    for of_torch, without, with_nan in zip(expected, ignored, poisoned, strict=True):
        bad = bad_BL.reshape(bad_BL.shape + (1,) * (of_torch.ndim - 2))
        value += bits_apart(with_nan, np.where(bad, np.nan, without).astype(np.float32))
        value += int(np.sum((np.asarray(without) == 0.0) != (of_torch == 0.0)))
        np.testing.assert_allclose(without, of_torch, rtol=0, atol=1e-5)
    counted = jax.jit(count_bad_labels, static_argnums=1, static_argnames="ignore_index")(
        labels_BL, C, ignore_index=ignore_index
    )
    value += abs(int(counted) - int(bad_BL.sum()))
    parity.check(
        "13",
        value,
        case=f"in jit, ignore_index {ignore_index}, {option}",
        cases=len(LABELS),
    )


@pytest.mark.parametrize("jit", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_ignored_bad_labels_do_not_count(parity, jit, weighted):
    weights_C = jnp.arange(1.0, C + 1) if weighted else None

    def summed(labels_BL):
        return masked_token_loss(
            jnp.zeros((1, 4, C)), labels_BL, class_weights_C=weights_C, bad_labels="ignore"
        )

    loss = (jax.jit(summed) if jit else summed)(jnp.array([[1, -1, C, -100]]))
    count = 2.0 if weighted else 1.0
    value = (float(loss.count) != count) + (abs(float(loss.mean()) - np.log(C)) > 1e-6)
    parity.check("13", value, case="count without ignored bad labels", cases=1)


def test_a_bad_label_has_no_class_weight():
    weights_C = jnp.arange(1.0, C + 1)
    for label in (-1, -C, C):
        labels_BL = jnp.array([[0, label]])
        assert np.isnan(jax.jit(loss_count)(labels_BL, weights_C))
        with pytest.raises(IndexError, match=f"label {label} at"):
            loss_count(labels_BL, weights_C)


def test_an_unknown_choice_for_bad_labels_is_an_error_that_names_the_known_ones():
    with pytest.raises(Exception, match=r"(?s)nan.*ignore"):
        token_loss(jnp.zeros((1, 1, C)), jnp.array([[0]]), bad_labels="skip")


@pytest.mark.parametrize("option", OPTIONS)
def test_where_all_is_ignored_loss_and_gradient_are_zero(parity, option):
    weights_C, smoothing = class_weights(C, option), OPTIONS[option][1]
    weights = None if weights_C is None else torch.tensor(weights_C)
    labels_BL = np.full((2, 3), -100, np.int32)

    def mean(logits_BLC, labels_BL, weights_C, empty):
        loss = masked_token_loss(
            logits_BLC, labels_BL, class_weights_C=weights_C, label_smoothing=smoothing
        )
        return loss.mean(empty=empty), loss.total

    run = jax.jit(jax.value_and_grad(mean, has_aux=True), static_argnums=3)
    worst = Worst(parity)
    for poison in (0.0, np.nan, np.inf, -np.inf, 3e38):
        logits_BLC = np.full((2, 3, C), poison, np.float32)
        logits_BLC[1] = np.linspace(-3.0, 3.0, 3 * C).reshape(3, C)
        (zero, total), grad_BLC = run(logits_BLC, labels_BL, weights_C, "zero")
        (nan, _), nan_grad_BLC = run(logits_BLC, labels_BL, weights_C, "nan")
        reference = torch_ref.losses.masked_token_loss(
            torch.tensor(logits_BLC),
            torch.tensor(labels_BL, dtype=torch.long),
            class_weights=weights,
            label_smoothing=smoothing,
        )
        value = (float(zero) != 0.0) + (float(total) != float(reference.total))
        value += bits_apart(nan, reference.mean().numpy())
        value += np.count_nonzero(grad_BLC) + np.count_nonzero(nan_grad_BLC)
        worst.see("14", value, f"logits of {poison}, {option}", labels_BL.size)
    worst.check()


@pytest.mark.parametrize("option", OPTIONS)
def test_no_logits_of_ignored_tokens_reach_loss_or_gradient(parity, option):
    weights_C, smoothing = class_weights(9, option), OPTIONS[option][1]
    logits_BLC, labels_BL = draw(0, 500, 9)
    clean = loss_and_gradient(logits_BLC, labels_BL, weights_C, label_smoothing=smoothing)
    ignored_BL1 = (labels_BL == -100)[..., None]
    worst = Worst(parity)
    for poison in (np.nan, np.inf, -np.inf, 3e38):
        poisoned_BLC = np.where(ignored_BL1, np.float32(poison), logits_BLC)
        found = loss_and_gradient(poisoned_BLC, labels_BL, weights_C, label_smoothing=smoothing)
        value = sum(bits_apart(a, b) for a, b in zip(found, clean, strict=True))
        value += sum(np.count_nonzero(np.asarray(a)[labels_BL == -100]) for a in found)
        worst.see("14", value, f"ignored logits of {poison}, {option}", int(ignored_BL1.sum()))
    worst.check()
