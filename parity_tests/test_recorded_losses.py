"""Losses against those that torch once gave; only the last test needs torch itself."""

from __future__ import annotations

import loss_records
import numpy as np
import pytest
from claims import CLAIMS
from loss_cases import OPTIONS, Worst, apart, bits_apart, class_weights, compare, natural_scale
from tolerances import FLOAT32_EPS

pytestmark = pytest.mark.parity


def test_losses_and_gradients_are_those_recorded_of_torch(parity):
    arrays, worst = loss_records.load(), Worst(parity)
    for num_classes in loss_records.CLASSES:
        logits_BLC, labels_BL = arrays[f"{num_classes}/logits"], arrays[f"{num_classes}/labels"]
        for option in OPTIONS:
            loss_BL = arrays[f"{num_classes}/{option}/loss"]
            grad_BLC = arrays[f"{num_classes}/{option}/gradient"]
            case = f"the records, C = {num_classes}, {option}"
            compare(worst, case, logits_BLC, labels_BL, option, loss_BL, grad_BLC)
    worst.check()


def test_torch_still_says_what_is_recorded_of_it():
    pytest.importorskip("torch")
    recorded, derived = loss_records.load(), loss_records.derive()
    assert recorded.keys() == derived.keys()
    # Another torch, or one with other vectors, sums and rounds otherwise.
    same_torch = loss_records.origin() == loss_records.recorded_origin()
    for name, array in derived.items():
        num_classes, *option, what = name.split("/")
        if what == "labels":
            np.testing.assert_array_equal(array, recorded[name])
        elif what == "logits" or same_torch:
            assert bits_apart(array, recorded[name]) == 0, name
        else:
            weights_C, smoothing = class_weights(int(num_classes), *option), OPTIONS[option[0]][1]
            inputs = recorded[f"{num_classes}/logits"], recorded[f"{num_classes}/labels"]
            heaviest = 1.0 if weights_C is None else weights_C.max()
            unit = natural_scale(*inputs, weights_C, smoothing) if what == "loss" else heaviest
            bound = CLAIMS["2" if what == "loss" else "3"].bound
            assert apart(array, recorded[name], FLOAT32_EPS * unit).max() <= bound, name
