"""A config in; a trained run directory out: the training path, read from top to bottom."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtag import checkpoint, diagnosis, run, step
from jaxtag.config import Config
from jaxtag.device import prefetch
from jaxtag.evaluation import Evaluation, evaluate
from jaxtag.loss_scale import alarm, find
from jaxtag.model import Params
from jaxtag.progress import (
    Meter,
    NotFiniteError,
    duration,
    metrics_line,
    require_finite,
    scaling_line,
)
from jaxtag.session import (
    Group,
    Position,
    Session,
    compile_programs,
    pass_over,
    place,
    prepare,
    take_step,
)


def train(config: Config) -> Path:
    """Train by a config, from corpora to ``result.json``; returns the run directory.

    The best model on dev is kept, a tie keeping the earlier one; without dev, the last.
    """
    session, state, position = prepare(config)
    try:
        state = compile_programs(session, state)
        state, position = _train_epochs(session, state, position)
        _finish(session, position)
    finally:
        session.log.close()
    return session.path


def _train_epochs(
    session: Session, state: step.TrainState, position: Position
) -> tuple[step.TrainState, Position]:
    settings = session.config.train
    while not _finished(session, position):
        state, position = _train_epoch(session, state, position)
        position = replace(position, epoch=position.epoch + 1)
        last = position.epoch == settings.epochs or position.step == session.total_steps
        if not settings.eval_steps or (last and not _evaluation_due(session, position)):
            position = _evaluate_dev(session, state, position)
        if "dev" not in session.data.splits:
            session.line.say(f"epoch {position.epoch} done; without --data.dev the last is kept")
            _keep(session, state.params, position)
        position = replace(position, metrics_lines=session.log.lines)
        checkpoint.save(session.path / run.CHECKPOINTS, position.epoch, state, asdict(position))
    return state, position


def _finished(session: Session, position: Position) -> bool:
    return (
        position.epoch >= session.config.train.epochs
        or position.step >= session.total_steps
        or _out_of_patience(session, position)
    )


def _train_epoch(
    session: Session, state: step.TrainState, position: Position
) -> tuple[step.TrainState, Position]:
    """Steps to the end of the epoch, the last step of all, or the end of patience."""
    meter = Meter()
    batches = pass_over(session, "train", position.epoch).batches
    size = session.config.train.accumulate
    groups = [batches[start : start + size] for start in range(0, len(batches), size)]
    for group in prefetch(groups, lambda placements: place(session, placements)):
        state, sums = take_step(session, state, group)
        position = replace(position, step=position.step + 1)
        meter.add(sums, group.cells)
        finished = position.step == session.total_steps
        if position.step % session.config.train.log_steps == 0 or finished:
            position = _log(session, meter, state, position, group)
        every = session.config.precision.report_every
        if every and position.step % every == 0:
            _report_precision(session, state, position, group)
            meter.restart_clock()
        if _evaluation_due(session, position):
            if meter.steps:
                position = _log(session, meter, state, position, group)
            position = _evaluate_dev(session, state, position)
            meter.restart_clock()
        if finished or _out_of_patience(session, position):
            break
    if meter.steps:
        position = _log(session, meter, state, position, group)
    return state, position


def _log(
    session: Session, meter: Meter, state: step.TrainState, position: Position, group: Group
) -> Position:
    """Write what the meter gathered to metrics.jsonl and to the progress line.

    Raises ``NotFiniteError`` where loss scaling has come to its end: too many steps in a row were
    skipped. It names the first layer, seen from the loss, whose gradient is inf or NaN.
    """
    scaling = jax.device_get(find(state.opt_state))
    scaled = session.recipe.scaling.mode != "off"
    summary = meter.summary(position.step, may_overflow=scaled)
    position = replace(position, seconds=position.seconds + summary.seconds)
    session.log.write(
        kind="train",
        step=position.step,
        epoch=position.epoch + 1,
        lr=float(session.recipe.schedule(max(0, int(state.step) - 1))),
        **metrics_line(summary),
        **(scaling_line(scaling) if scaled else {}),
    )
    limit = session.config.precision.max_skips
    if (trouble := alarm(scaling, max_skips=limit)) is not None:
        layer = diagnosis.first_bad_layer(session.recipe, state, group.batches, group.step_count)
        raise NotFiniteError(
            f"step {position.step:,}: {trouble}; {layer}; lower --train.lr or "
            "--precision.init-scale, or use --precision.policy bfloat16"
        )
    left = (session.total_steps - position.step) * position.seconds / position.step
    session.line.show(
        f"epoch {position.epoch + 1}/{session.config.train.epochs} "
        f"step {position.step:,}/{session.total_steps:,} loss {summary.loss:.4f} "
        f"{summary.tokens_per_second:,.0f} tokens/s {summary.padding_efficiency:.0%} real "
        f"ETA {duration(left)}"
    )
    return position


def _report_precision(
    session: Session, state: step.TrainState, position: Position, group: Group
) -> None:
    """Write what the policy takes from each layer's gradient, after this step, on its batch."""
    scale = float(find(state.opt_state).scale)
    batches = [(batch, group.step_count) for batch in group.batches]
    survey = session.survey(state.params, batches, [scale])
    session.log.write(kind="precision", step=position.step, **survey.to_json())


def _evaluation_due(session: Session, position: Position) -> bool:
    every = session.config.train.eval_steps
    return bool(every) and position.step % every == 0


def _out_of_patience(session: Session, position: Position) -> bool:
    patience = session.config.train.patience
    return bool(patience) and position.evaluations_since_best >= patience


def _evaluate_dev(session: Session, state: step.TrainState, position: Position) -> Position:
    """Score the model on dev; where it is the best so far, keep it."""
    if "dev" not in session.data.splits:
        return position
    started = time.perf_counter()
    found = _evaluate(session, "dev", state.params)
    require_finite(found.loss, f"dev after step {position.step:,}")
    best = position.best_score is None or found.score > position.best_score
    if best:
        _keep(session, state.params, position)
        position = replace(
            position,
            best_score=found.score,
            best_step=position.step,
            best_dev=found.to_json(),
            evaluations_since_best=0,
        )
    elif position.best_score:  # a score that is still 0 has yet to begin
        position = replace(position, evaluations_since_best=position.evaluations_since_best + 1)
    session.log.write(
        kind="dev",
        step=position.step,
        loss=found.loss,
        accuracy=found.accuracy,
        score=found.score,
        best=best,
        seconds=time.perf_counter() - started,
    )
    session.line.say(f"step {position.step:,}: dev {found.summary()}{' (best)' if best else ''}")
    return position


def _keep(session: Session, params: Params, position: Position) -> None:
    """Write the model that a user loads; one with a number that is none is refused."""
    for name, values in checkpoint.flatten(params).items():
        if not np.isfinite(values).all():
            raise NotFiniteError(
                f"step {position.step:,}: expected finite parameters, found others in {name}; "
                "lower --train.lr or set --train.clip-norm"
            )
    checkpoint.save_tree(session.path / run.MODEL, params)


def _evaluate(session: Session, name: str, params: Params) -> Evaluation:
    split = session.data.splits[name]
    found, _ = evaluate(
        session.evaluate,
        params,
        split.encoded,
        split.gold,
        pass_over(session, name),
        labels=session.data.encoder.labels,
        scheme=session.data.scheme,
        devices=session.devices,
    )
    return found


def _finish(session: Session, position: Position) -> None:
    """Score the kept model on the test set and write ``result.json``."""
    result: dict[str, Any] = {"step": position.best_step or position.step}
    if position.best_dev is not None:
        result["dev"] = position.best_dev
    template = jax.eval_shape(session.recipe.model.init, jax.random.key(0))
    kept = checkpoint.load_tree(session.path / run.MODEL, template)
    tested = None
    if "test" in session.data.splits:
        tested = _evaluate(session, "test", session.devices.replicate(kept))
        require_finite(tested.loss, "test")
        result["test"] = tested.to_json()
    checkpoint.write_json(session.path / run.RESULT, result)
    if tested is not None:
        session.line.say("")
        tested.show("test")
    session.line.say(f"kept the model of step {result['step']:,}; all is in {session.path}")
