"""A config in; a trained run directory out: the training path, read from top to bottom.

``train`` reads the data, runs the epochs over it, keeps the best model and scores it on the test
set.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jaxtag import checkpoint, optim, plan, run, step
from jaxtag.batch import Batch, make_batch
from jaxtag.config import Config, ConfigError
from jaxtag.data import Data, read
from jaxtag.device import Devices, local_devices, prefetch
from jaxtag.encode import IGNORE
from jaxtag.evaluation import Evaluation, evaluate
from jaxtag.model import Params
from jaxtag.progress import Meter, ProgressLine, duration, metrics_line
from jaxtag.tagger import build_model


@dataclass(frozen=True)
class Position:
    """Where a training stands: saved with every checkpoint, and all that resuming needs."""

    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Optimizer steps taken."""
    best_score: float | None = None
    best_step: int = 0
    best_dev: dict[str, Any] | None = None
    """The best model's scores on dev, as in result.json."""
    evaluations_since_best: int = 0
    metrics_lines: int = 0
    seconds: float = 0.0
    """Spent in steps, compilation and evaluation left out."""


@dataclass(frozen=True)
class Session:
    """What stays the same from the first step of a training to the last."""

    config: Config
    data: Data
    devices: Devices
    recipe: step.Recipe
    programs: step.TrainPrograms
    evaluate: Callable[..., Any]
    total_steps: int
    path: Path
    log: run.MetricsLog
    line: ProgressLine


class Group(NamedTuple):
    """The micro-batches of one optimizer step, on the devices."""

    batches: list[Batch]
    step_count: np.float32
    """What the sum of their losses is divided by."""
    cells: int


def train(config: Config) -> Path:
    """Train by a config, from corpora to ``result.json``; returns the run directory."""
    run.check(config)
    devices = local_devices(config.data.row_multiple)
    line = ProgressLine()
    data = read(config, line.say)
    model = build_model(config, data.encoder)
    total_steps = _total_steps(config, data)
    weights_C = _class_weights(config.train.class_weights, data.encoder.labels)
    recipe = step.Recipe(
        model,
        optim.build(config.train, total_steps),
        optim.schedule(config.train, total_steps),
        seed=config.train.seed,
        class_weights_C=weights_C,
        label_smoothing=config.train.label_smoothing,
    )
    path = run.open_directory(config, data.name)
    state, position = _start(config, recipe, path)
    _write_setup(path, config, data, devices, total_steps)
    session = Session(
        config=config,
        data=data,
        devices=devices,
        recipe=recipe,
        programs=step.train_programs(recipe, devices),
        evaluate=step.eval_program(model, devices),
        total_steps=total_steps,
        path=path,
        log=run.MetricsLog(path / run.METRICS, keep_lines=position.metrics_lines),
        line=line,
    )
    line.say(
        f"run {path}: {_describe_model(state.params)}, {total_steps:,} steps on "
        f"{devices.describe()}"
    )
    try:
        state = _compile(session, devices.replicate(state))
        state, position = _train_epochs(session, state, position)
        _finish(session, position)
    finally:
        session.log.close()
    return path


def _total_steps(config: Config, data: Data) -> int:
    batches = len(plan.epoch_plan(data.shapes, data.train.lengths).batches)
    steps = -(-batches // config.train.accumulate) * config.train.epochs
    return min(steps, config.train.max_steps) if config.train.max_steps else steps


def _start(config: Config, recipe: step.Recipe, path: Path) -> tuple[step.TrainState, Position]:
    """A fresh state at the beginning, or the last finished epoch's with ``--resume``."""
    if config.resume:
        if (path / run.RECORD).exists():
            run.require_same_training(path, config)
        template = jax.eval_shape(lambda: step.init_state(recipe))
        found = checkpoint.load_newest(path / run.CHECKPOINTS, template)
        if found is not None:
            state, position = found
            return state, _read_position(path, position)
    return step.init_state(recipe), Position()


def _read_position(path: Path, saved: dict[str, Any]) -> Position:
    try:
        return Position(**saved)
    except TypeError as error:
        raise checkpoint.CheckpointError(
            f"{path / run.CHECKPOINTS}: written by another version of jaxtag ({error}); "
            "go on with that one, or start another run"
        ) from error


def _class_weights(given: Sequence[str], label_list: Sequence[str]) -> jax.Array | None:
    if not given:
        return None
    weights = dict.fromkeys(label_list, 1.0)
    for item in given:
        name, _, value = item.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = math.nan
        if name not in weights or not 0.0 <= weight < math.inf:
            raise ConfigError(
                "train.class-weights: expected LABEL=WEIGHT with a weight of 0 or more and one "
                f"of the labels {' '.join(label_list)}, found {item!r}"
            )
        weights[name] = weight
    return jnp.array(list(weights.values()), jnp.float32)


def _write_setup(
    path: Path, config: Config, data: Data, devices: Devices, total_steps: int
) -> None:
    run.write_encoder(path, data.encoder, data.scheme)
    if config.data.train is None:
        for name, split in data.splits.items():
            checkpoint.write_bytes(path / f"demo.{name}.conll", split.corpus.text.encode())
    facts = {
        "scheme": data.scheme,
        "total_steps": total_steps,
        "devices": devices.describe(),
        "shapes": [[shape.rows, shape.length] for shape in data.shapes.shapes],
        "corpora": {
            name: {
                "layout": split.corpus.layout.describe(),
                "sentences": len(split.corpus.sentences),
                "tokens": split.corpus.token_count,
            }
            for name, split in data.splits.items()
        },
    }
    run.write_record(path, config, data.splits["train"].corpus.layout, facts)


def _describe_model(params: Params) -> str:
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters"


def _compile(session: Session, state: step.TrainState) -> step.TrainState:
    """Run every program once at every shape it will meet, on rows that count for nothing."""
    started = time.perf_counter()
    shapes = {
        name: sorted({placement.shape for placement in _plan(session, name).batches})
        for name in session.data.splits
    }
    for number, shape in enumerate(shapes["train"], 1):
        session.line.show(f"compiling training step {number} of {len(shapes['train'])}")
        empty = Group([_empty_batch(session, shape)], np.float32(0), 0)
        state, _ = _take_step(session, state, empty)
    evaluated = sorted({shape for name in ("dev", "test") for shape in shapes.get(name, [])})
    for number, shape in enumerate(evaluated, 1):
        session.line.show(f"compiling evaluation {number} of {len(evaluated)}")
        session.evaluate(state.params, _empty_batch(session, shape))
    state.step.block_until_ready()
    session.line.say(
        f"compiled {len(shapes['train'])} training and {len(evaluated)} evaluation shapes "
        f"in {time.perf_counter() - started:.1f} s"
    )
    return state


def _empty_batch(session: Session, shape: plan.Shape) -> Batch:
    nobody = np.zeros(0, np.int32)
    placement = plan.Placement(shape, nobody, nobody, nobody)
    return session.devices.shard(make_batch(session.data.train, placement))


def _plan(session: Session, name: str, epoch: int | None = None) -> plan.EpochPlan:
    """A shuffled pass over a split for an epoch; without one, the pass for evaluation."""
    return plan.epoch_plan(
        session.data.shapes,
        session.data.splits[name].encoded.lengths,
        seed=session.config.train.seed,
        epoch=epoch or 0,
        shuffle=epoch is not None,
    )


def _train_epochs(
    session: Session, state: step.TrainState, position: Position
) -> tuple[step.TrainState, Position]:
    settings = session.config.train
    while position.epoch < settings.epochs and position.step < session.total_steps:
        state, position = _train_epoch(session, state, position)
        position = replace(position, epoch=position.epoch + 1)
        last = position.epoch == settings.epochs or position.step == session.total_steps
        if not settings.eval_steps or (last and not _evaluation_due(session, position)):
            position = _evaluate_dev(session, state, position)
        if "dev" not in session.data.splits:
            checkpoint.save_tree(session.path / run.MODEL, state.params)
        position = replace(position, metrics_lines=session.log.lines)
        checkpoint.save(
            session.path / run.CHECKPOINTS, f"epoch-{position.epoch:04}", state, asdict(position)
        )
        if _out_of_patience(session, position):
            break
    return state, position


def _train_epoch(
    session: Session, state: step.TrainState, position: Position
) -> tuple[step.TrainState, Position]:
    """Steps to the end of the epoch, the last step of all, or the end of patience."""
    meter = Meter()
    batches = _plan(session, "train", position.epoch).batches
    size = session.config.train.accumulate
    groups = [batches[start : start + size] for start in range(0, len(batches), size)]
    for group in prefetch(groups, lambda placements: _place(session, placements)):
        state, sums = _take_step(session, state, group)
        position = replace(position, step=position.step + 1)
        meter.add(sums, group.cells)
        finished = position.step == session.total_steps
        if position.step % session.config.train.log_steps == 0 or finished:
            position = _log(session, meter, position)
        if _evaluation_due(session, position):
            if meter.steps:
                position = _log(session, meter, position)
            position = _evaluate_dev(session, state, position)
            meter.restart_clock()
        if finished or _out_of_patience(session, position):
            break
    if meter.steps:
        position = _log(session, meter, position)
    return state, position


def _place(session: Session, placements: Sequence[plan.Placement]) -> Group:
    batches = [make_batch(session.data.train, placement) for placement in placements]
    labels_of_tokens = np.concatenate([b.labels_BL[b.labels_BL != IGNORE] for b in batches])
    weights_C = session.recipe.class_weights_C
    count = labels_of_tokens.size
    if weights_C is not None:
        count = np.asarray(weights_C, np.float64)[labels_of_tokens].sum()
    return Group(
        [session.devices.shard(batch) for batch in batches],
        np.float32(count),
        sum(placement.shape.cells for placement in placements),
    )


def _take_step(
    session: Session, state: step.TrainState, group: Group
) -> tuple[step.TrainState, list[step.StepSums]]:
    programs, count = session.programs, group.step_count
    if session.config.train.accumulate == 1:
        state, sums = programs.train(state, group.batches[0], count)
        return state, [sums]
    gradient, all_sums = programs.zeros(state.params), []
    for number, batch in enumerate(group.batches):
        gradient, sums = programs.accumulate(state, gradient, batch, count, np.int32(number))
        all_sums.append(sums)
    return programs.apply(state, gradient, count), all_sums


def _log(session: Session, meter: Meter, position: Position) -> Position:
    """Write what the meter gathered to metrics.jsonl and to the progress line."""
    summary = meter.summary(position.step)
    position = replace(position, seconds=position.seconds + summary.seconds)
    rate = float(session.recipe.schedule(position.step - 1))
    session.log.write(
        kind="train",
        step=position.step,
        epoch=position.epoch + 1,
        lr=rate,
        **metrics_line(summary),
    )
    left = (session.total_steps - position.step) * position.seconds / position.step
    session.line.show(
        f"epoch {position.epoch + 1}/{session.config.train.epochs} "
        f"step {position.step:,}/{session.total_steps:,} loss {summary.loss:.4f} "
        f"{summary.tokens_per_second:,.0f} tokens/s {summary.padding_efficiency:.0%} real "
        f"ETA {duration(left)}"
    )
    return position


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
    best = position.best_score is None or found.score > position.best_score
    if best:
        checkpoint.save_tree(session.path / run.MODEL, state.params)
        position = replace(
            position,
            best_score=found.score,
            best_step=position.step,
            best_dev=found.to_json(),
            evaluations_since_best=0,
        )
    else:
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


def _evaluate(session: Session, name: str, params: Params) -> Evaluation:
    split = session.data.splits[name]
    found, _ = evaluate(
        session.evaluate,
        params,
        split.encoded,
        split.gold,
        _plan(session, name),
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
    if "test" in session.data.splits:
        template = jax.eval_shape(session.recipe.model.init, jax.random.key(0))
        kept = checkpoint.load_tree(session.path / run.MODEL, template)
        found = _evaluate(session, "test", session.devices.replicate(kept))
        result["test"] = found.to_json()
        session.line.say("")
        Console().print(found.table("test"))
    checkpoint.write_json(session.path / run.RESULT, result)
    session.line.say(f"kept the model of step {result['step']:,}; all is in {session.path}")
