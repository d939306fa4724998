"""Both models and whole trainings against torch_ref, the weights carried over by path."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest
import safetensors.torch
import taggers
import torch
import torch_taggers
import weights
from distances import relative_distance
from loss_cases import Worst

from jaxtag import checkpoint, optim
from jaxtag.config import TrainConfig
from torch_ref import optim as torch_optim

pytestmark = pytest.mark.parity
KINDS = pytest.mark.parametrize("kind", taggers.MODELS)
TRAINED = pytest.mark.parametrize("kind", taggers.TRAINED)


@KINDS
def test_logits_and_gradients_of_both_models_are_torchs(parity, kind):
    encoded, start = taggers.corpus(1, 320, kind), taggers.start(kind, 1)
    placements = taggers.first_batches(encoded, 20)
    arguments = encoded, placements
    ours = taggers.logits_and_gradients(kind, start, *arguments)
    theirs = torch_taggers.logits_and_gradients(torch_taggers.tagger(kind, start), *arguments)
    in_float64 = torch_taggers.tagger(kind, start, torch.float64)
    exact = torch_taggers.logits_and_gradients(in_float64, *arguments)
    worst, batches = Worst(parity), 0
    for (logits, found), (expected, reference), (_, truth) in zip(ours, theirs, exact, strict=True):
        worst.see("10a", np.abs(logits - expected).max(), kind)
        whole = np.sqrt(sum((leaf**2).sum() for leaf in truth.values()))
        for name, leaf in found.items():
            size = np.linalg.norm(truth[name])
            gap = np.linalg.norm(np.float64(leaf) - reference[name])
            relative = gap / (size if size > 1e-12 * whole else whole)
            worst.see("10b", relative, f"{kind}, {name}")
        batches += 1
    assert batches == 20
    worst.check()


@TRAINED
def test_a_training_of_100_steps_is_torchs(parity, kind):
    encoded, start = taggers.corpus(5, sentences=240), taggers.start(kind, seed=5)
    groups = taggers.groups(encoded, 100, seed=5)
    theirs = torch_taggers.train(torch_taggers.tagger(kind, start), encoded, groups)
    ours = taggers.train(kind, start, encoded, groups)
    worst = Worst(parity)
    taggers.agree_at_every_step(worst, kind, ours, theirs)
    worst.check()


@pytest.mark.long
@TRAINED
def test_a_training_of_1000_steps_is_torchs_and_as_near_to_float64(parity, kind):
    worst, ratios = Worst(parity), []
    for seed in (0, 1, 2):
        encoded, start = taggers.corpus(seed, sentences=16_000), taggers.start(kind, seed)
        groups = taggers.groups(encoded, 1000, seed)
        theirs, exact = (
            torch_taggers.train(torch_taggers.tagger(kind, start, dtype), encoded, groups)
            for dtype in (torch.float32, torch.float64)
        )
        ours = taggers.train(kind, start, encoded, groups)
        taggers.agree_at_every_step(worst, f"{kind}, seed {seed}", ours, theirs)
        own, torchs = (np.abs(np.divide(t.losses, exact.losses) - 1) for t in (ours, theirs))
        ratios.append(own.max() / torchs.max())
        if seed == 0:
            parity.curve(kind, theirs.losses, ours.losses)
    case = f"{kind}, seeds {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
    worst.see("11c", np.median(ratios), case, len(ratios))
    worst.check()


@KINDS
def test_weights_go_to_jaxtag_and_back_without_a_changed_byte(parity, kind, tmp_path):
    state = torch_taggers.tagger(kind, taggers.start(kind, seed=3)).state_dict()
    safetensors.torch.save_file(state, tmp_path / "torch.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "torch.safetensors")
    params = weights.to_jax(loaded)
    checkpoint.save_tree(tmp_path / "jax.safetensors", params)
    template = jax.eval_shape(taggers.tagger(kind).init, jax.random.key(0))
    back = weights.to_torch(
        checkpoint.load_tree(tmp_path / "jax.safetensors", template), like=state
    )
    changed = [name for name in state if not same_bytes(state[name], back[name])]
    parity.check("12", len(changed), case=f"{kind}: {changed}", cases=len(state))


@KINDS
def test_optimizer_state_goes_to_jaxtag_and_back_and_both_go_on_from_it(parity, kind):
    tagger = torch_taggers.tagger(kind, taggers.start(kind, seed=4))
    optimizer, _ = torch_optim.build(tagger, TrainConfig(warmup=0.0), 10)
    encoded = taggers.corpus(4, 40, kind)
    for placement in taggers.first_batches(encoded, 2):
        ((_, grads),) = torch_taggers.logits_and_gradients(tagger, encoded, [placement])
        before = weights.to_jax(tagger.state_dict())
        mu, nu, count = torch_taggers.moments(tagger, optimizer)
        optimizer.step()
    state = optim.AdamWState(np.int32(count), weights.to_jax(mu), weights.to_jax(nu))
    back_mu, back_nu = weights.to_torch(state.mu, like=mu), weights.to_torch(state.nu, like=nu)
    changed = [n for n in mu if not same_bytes(mu[n], back_mu[n])]
    changed += [n for n in nu if not same_bytes(nu[n], back_nu[n])]
    parity.check("12", len(changed), case=f"{kind}: {changed}", cases=2 * len(mu))

    adamw = optim.adamw(TrainConfig().lr, weight_decay=0.01, mask=optim.decay_mask)
    assert jax.tree.structure(state) == jax.tree.structure(adamw.init(before))
    template = jax.tree.structure(before)
    gradient = jax.tree.unflatten(template, [grads[name] for name in checkpoint.flatten(before)])
    updates, state = jax.jit(adamw.update)(gradient, state, before)
    after = optax.apply_updates(before, updates)
    distance = relative_distance(after, weights.to_jax(tagger.state_dict()))
    parity.check("8", distance, case=f"{kind}, from the state carried over", cases=1)
    assert int(state.count) == 2


def same_bytes(one, other):
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
