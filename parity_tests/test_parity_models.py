"""Both models and whole trainings against torch_ref, the weights carried over by path."""

from __future__ import annotations

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import safetensors.torch  # noqa: E402
import taggers  # noqa: E402
import weights  # noqa: E402

from jaxtag import checkpoint, losses, optim  # noqa: E402
from jaxtag.batch import make_batch  # noqa: E402
from jaxtag.config import TrainConfig  # noqa: E402
from jaxtag.plan import choose_shapes, epoch_plan  # noqa: E402
from torch_ref import losses as torch_losses  # noqa: E402
from torch_ref import optim as torch_optim  # noqa: E402

pytestmark = pytest.mark.parity
KINDS = pytest.mark.parametrize("kind", ["bilstm", "transformer"])


def gradients(tagger, batch):
    """Gradients of the mean loss by name, as arrays of jaxtag's layout."""
    loss = torch_losses.masked_token_loss(tagger(batch), batch.labels)
    (loss.total / loss.count).backward()
    named = {name: p.grad for name, p in tagger.named_parameters() if p.grad is not None}
    return weights.to_jax(named)


@KINDS
def test_logits_and_gradients_of_both_models_are_torchs(parity, kind):
    encoded = taggers.corpus(seed=1, sentences=160)
    shapes = choose_shapes(encoded.lengths, shapes=1, batch_tokens=640)
    placements = epoch_plan(shapes, encoded.lengths, seed=1).batches[:20]
    tagger = taggers.torch_tagger(kind, seed=1)
    model, params = taggers.jax_tagger(kind), weights.to_jax(tagger.state_dict())

    @jax.jit
    def logits_and_gradient(params, batch):
        def objective(params):
            logits_BLC = model.apply(params, batch)
            return losses.masked_token_loss(logits_BLC, batch.labels_BL).mean(), logits_BLC

        (_, logits_BLC), grads = jax.value_and_grad(objective, has_aux=True)(params)
        return logits_BLC, grads

    worst_logit, worst_gradient, worst_leaf = 0.0, 0.0, ""
    for placement in placements:
        batch = taggers.torch_batch(encoded, placement)
        logits_BLC, grads = logits_and_gradient(params, make_batch(encoded, placement))
        with torch.no_grad():
            expected = tagger(batch)[batch.mask].numpy()
        rows, length = batch.ids.shape
        found = np.asarray(logits_BLC)[:rows, :length][batch.mask.numpy()]
        worst_logit = max(worst_logit, float(np.abs(found - expected).max()))
        tagger.zero_grad()
        theirs = checkpoint.flatten(gradients(tagger, batch))
        exact = checkpoint.flatten(gradients(taggers.double(tagger, kind), batch))
        whole = np.sqrt(sum(float((leaf**2).sum()) for leaf in exact.values()))
        for name, ours in checkpoint.flatten(grads).items():
            size = float(np.linalg.norm(exact[name]))
            gap = float(np.linalg.norm(ours.astype(np.float64) - theirs[name]))
            relative = gap / (size if size > 1e-12 * whole else whole)
            if relative > worst_gradient:
                worst_gradient, worst_leaf = relative, name
    parity.check("10a", worst_logit, case=kind, cases=len(placements))
    parity.check("10b", worst_gradient, case=f"{kind}, {worst_leaf}", cases=len(placements))


@KINDS
def test_a_training_of_100_steps_is_torchs(parity, kind):
    steps = 100
    encoded = taggers.corpus(seed=0, sentences=240)
    groups = taggers.groups(encoded, steps, seed=0)
    tagger = taggers.torch_tagger(kind, seed=0)
    start = weights.to_jax(tagger.state_dict())
    theirs = taggers.train_torch(tagger, encoded, groups)
    ours = taggers.train_jax(kind, start, encoded, groups)
    gaps = np.abs(np.array(ours.losses) - theirs.losses) / np.abs(theirs.losses)
    missed = np.abs(np.array(ours.correct) - theirs.correct) - np.array(theirs.close)
    parity.curve(kind, theirs.losses, ours.losses)
    parity.check("11a", float(gaps.max()), case=f"{kind}, step {gaps.argmax() + 1}", cases=steps)
    parity.check("11b", int(missed.clip(0).sum()), case=kind, cases=steps)


@KINDS
def test_weights_go_to_jaxtag_and_back_without_a_changed_byte(parity, kind, tmp_path):
    state = taggers.torch_tagger(kind, seed=3).state_dict()
    safetensors.torch.save_file(state, tmp_path / "torch.safetensors")
    loaded = safetensors.torch.load_file(tmp_path / "torch.safetensors")
    params = weights.to_jax(loaded)
    checkpoint.save_tree(tmp_path / "jax.safetensors", params)
    template = jax.eval_shape(taggers.jax_tagger(kind).init, jax.random.key(0))
    back = weights.to_torch(
        checkpoint.load_tree(tmp_path / "jax.safetensors", template), like=state
    )
    changed = [name for name in state if not same_bytes(state[name], back[name])]
    parity.check("12", len(changed), case=f"{kind}: {changed}", cases=len(state))


@KINDS
def test_moments_and_step_of_adamw_go_there_and_back_without_a_changed_byte(parity, kind):
    tagger = taggers.torch_tagger(kind, seed=4)
    optimizer, _ = torch_optim.build(tagger, TrainConfig(), 10)
    encoded = taggers.corpus(seed=4, sentences=8)
    shapes = choose_shapes(encoded.lengths, shapes=1)
    batch = taggers.torch_batch(encoded, epoch_plan(shapes, encoded.lengths).batches[0])
    gradients(tagger, batch)
    optimizer.step()
    names = {id(p): name for name, p in tagger.named_parameters()}
    held = {
        names[id(p)]: optimizer.state[p]
        for group in optimizer.param_groups
        for p in group["params"]
    }
    mu, nu = ({n: s[key] for n, s in held.items()} for key in ("exp_avg", "exp_avg_sq"))
    count = {int(s["step"]) for s in held.values()}
    state = optim.AdamWState(np.int32(count.pop()), weights.to_jax(mu), weights.to_jax(nu))
    assert not count
    back_mu, back_nu = weights.to_torch(state.mu, like=mu), weights.to_torch(state.nu, like=nu)
    changed = [n for n in mu if not same_bytes(mu[n], back_mu[n])]
    changed += [n for n in nu if not same_bytes(nu[n], back_nu[n])]
    parity.check("12", len(changed), case=f"{kind}: {changed}", cases=2 * len(mu))
    assert int(state.count) == 1


def same_bytes(one, other):
    return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
