"""The reference's own loop and command: what it prints, refuses, and leaves alone."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import taggers
import torch
import torch_taggers
from tolerances import FEW_FLOAT32_ROUNDINGS

from jaxtag import device, step
from jaxtag.batch import make_batch
from jaxtag.config import ConfigError, TrainConfig
from torch_ref import optim, train
from torch_ref import step as reference
from torch_ref.batch import Sentences, SortedMegaBatches

FAST = ("--model.width=8", "--train.epochs=2", "--train.batch-tokens=64")


def test_evaluation_over_a_set_is_jaxtags():
    encoded, params = taggers.corpus(seed=7, sentences=60), taggers.start("bilstm", seed=7)
    placements = taggers.first_batches(encoded, 3)
    sentences, tagger = Sentences(encoded), torch_taggers.tagger("bilstm", params)
    batches = [torch_taggers.batch(sentences, placement) for placement in placements]
    loss, counts, predicted = reference.evaluate(tagger, batches)
    program = step.eval_program(taggers.tagger("bilstm"), device.local_devices(8))
    found = [program(params, make_batch(encoded, placement)) for placement in placements]
    sums = [sums for sums, _ in found]
    assert counts.correct == sum(int(s.tokens.correct) for s in sums)
    assert counts.total == sum(int(s.tokens.total) for s in sums)
    total = sum(float(s.loss.total) for s in sums)
    assert loss == pytest.approx(total / counts.total, rel=FEW_FLOAT32_ROUNDINGS)
    for placement, (_, best_BL) in zip(placements, found, strict=True):
        for row in placement.rows:
            tags = predicted.pop(0)
            assert np.asarray(best_BL)[row, : len(tags)].tolist() == tags
    assert not predicted


def test_a_step_without_a_token_changes_nothing():
    tagger = torch_taggers.tagger("bilstm", taggers.start("bilstm", seed=7))
    optimizer, schedule = optim.build(tagger, TrainConfig(), 10)
    encoded = taggers.corpus(seed=7, sentences=8)
    (placement,) = taggers.first_batches(encoded, 1)
    batch = torch_taggers.batch(Sentences(encoded), placement)
    batch.labels.fill_(-100)
    before = copy.deepcopy(tagger.state_dict())
    assert reference.train_step(tagger, optimizer, schedule, [batch]) == (0.0, 0)
    for name, value in tagger.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("sampler", ["shuffled", "sorted"])
def test_the_command_trains_scores_and_tests(corpora, capsys, sampler):
    files = [f"--data.{split}={corpora / split}.conll" for split in ("train", "dev", "test")]
    train.main([*files, *FAST, f"--sampler={sampler}"])
    *epochs, tested = capsys.readouterr().out.splitlines()
    assert [line.split(" loss")[0] for line in epochs] == ["epoch 1 step 3", "epoch 2 step 6"]
    assert all(" | dev loss " in line for line in epochs)
    assert tested.startswith("test loss ")
    assert "'f1': " in tested


@pytest.mark.parametrize(
    "flag", ["--precision.max-skips=3", "--run=somewhere", "--data.shapes=2", "--resume"]
)
def test_a_flag_of_jaxtags_alone_is_refused(flag):
    with pytest.raises(ConfigError, match="the reference has no such setting"):
        train.main([flag])


def test_sorted_mega_batches_hold_every_sentence_once_and_pad_little():
    lengths = (3 + np.arange(400) * 7 % 78).tolist()
    batches = list(SortedMegaBatches(lengths, 8, seed=0, mega_batch=10))
    assert sorted(index for batch in batches for index in batch) == list(range(400))
    cells = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert sum(lengths) / cells > 0.9
