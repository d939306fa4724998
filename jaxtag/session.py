"""A config in; a ``Session`` out: all that stays the same while a training runs, compiled.

``prepare`` reads the data, makes or resumes the state, opens the run directory and compiles every
program for every planned shape.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxtag import checkpoint, files, optim, plan, run, step
from jaxtag.batch import Batch, make_batch
from jaxtag.config import Config, ConfigError, PrecisionConfig
from jaxtag.data import Data, read
from jaxtag.device import Devices, local_devices
from jaxtag.diagnosis import Survey, surveyor
from jaxtag.encode import IGNORE, class_weights
from jaxtag.loss_scale import OFF, LossScaleConfig
from jaxtag.model import Params
from jaxtag.precision import Policy
from jaxtag.progress import ProgressLine
from jaxtag.tagger import build_model

FLOAT32 = PrecisionConfig()


@dataclass(frozen=True)
class Position:
    """Where a training stands: saved with every checkpoint, and all that resuming needs."""

    epoch: int = 0
    """Epochs finished."""
    step: int = 0
    """Optimizer steps passed; one without a token that counts changed nothing."""
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
    survey: Callable[..., Survey]
    """(parameters, batches with their counts, scales); compiled where it is first asked for."""
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


def prepare(config: Config) -> tuple[Session, step.TrainState, Position]:
    """Bring a training to where only compiling is left before its next step."""
    run.check(config)
    devices = local_devices(config.data.row_multiple)
    line = ProgressLine()
    warning = Policy(config.precision.policy).warning(jax.default_backend())
    if warning is not None:
        line.say(f"warning: {warning}")
    data = read(config, line.say)
    total_steps = _total_steps(config, data)
    recipe = _recipe(config, data, total_steps)
    path = run.open_directory(config, data.name)
    state, position = _start(config, data, recipe, path, line.say)
    _write_setup(path, config, data, devices, total_steps)
    session = Session(
        config=config,
        data=data,
        devices=devices,
        recipe=recipe,
        programs=step.train_programs(recipe, devices),
        evaluate=step.eval_program(recipe.model, devices),
        survey=surveyor(recipe, build_model(replace(config, precision=FLOAT32), data.encoder)),
        total_steps=total_steps,
        path=path,
        log=run.MetricsLog(path / run.METRICS, keep_lines=position.metrics_lines),
        line=line,
    )
    line.say(
        f"run {path}: {_describe_model(state.params)}, {total_steps:,} steps on "
        f"{devices.describe()}"
    )
    return session, devices.replicate(state), position


def _recipe(config: Config, data: Data, total_steps: int) -> step.Recipe:
    schedule = optim.schedule(config.train, total_steps)
    scaling = _scaling(config.precision)
    weights = class_weights(config.train.class_weights, data.encoder.labels)
    return step.Recipe(
        build_model(config, data.encoder),
        optim.build(config.train, schedule),
        schedule,
        scaling,
        seed=config.train.seed,
        class_weights_C=weights,
        label_smoothing=config.train.label_smoothing,
    )


def _scaling(config: PrecisionConfig) -> LossScaleConfig:
    mode = config.loss_scale
    if mode == "auto":
        mode = "dynamic" if config.policy == "float16" else "off"
    if mode == "off":
        return OFF
    return LossScaleConfig(
        init_scale=config.init_scale,
        growth_interval=config.growth_interval,
        min_scale=config.min_scale,
        max_scale=config.max_scale,
        mode=mode,
    )


def _total_steps(config: Config, data: Data) -> int:
    batches = len(plan.epoch_plan(data.shapes, data.train.lengths).batches)
    steps = -(-batches // config.train.accumulate) * config.train.epochs
    steps = min(steps, config.train.max_steps) if config.train.max_steps else steps
    if steps >= 2**31:
        raise ConfigError(
            f"train.epochs: expected fewer than {2**31:,} steps in all, found {steps:,}"
        )
    return steps


def _start(
    config: Config, data: Data, recipe: step.Recipe, path: Path, say: Callable[[str], None]
) -> tuple[step.TrainState, Position]:
    """A fresh state at the beginning, or the last finished epoch's with ``--resume``."""
    if config.resume:
        if (path / run.RECORD).exists():
            run.require_same_training(path, config, _corpora(data))
        template = jax.eval_shape(lambda: step.init_state(recipe))
        found = checkpoint.load_newest(path / run.CHECKPOINTS, template)
        if found is not None:
            state, position = found
            return state, _read_position(path, position)
        say(f"nothing to resume in {path}; starting from nothing")
    return jax.jit(lambda: step.init_state(recipe))(), Position()


def _read_position(path: Path, saved: dict[str, Any]) -> Position:
    try:
        return Position(**saved)
    except TypeError as error:
        raise checkpoint.CheckpointError(
            f"{path / run.CHECKPOINTS}: written by another version of jaxtag ({error}); "
            "go on with that one, or start another run"
        ) from error


def _write_setup(
    path: Path, config: Config, data: Data, devices: Devices, total_steps: int
) -> None:
    run.write_encoder(path, data.encoder, data.scheme)
    if config.data.train is None:
        for name, split in data.splits.items():
            files.write_bytes(path / f"demo.{name}.conll", split.corpus.text.encode())
    facts = {
        "scheme": data.scheme,
        "total_steps": total_steps,
        "devices": devices.describe(),
        "shapes": [asdict(shape) for shape in data.shapes.shapes],
        "corpora": _corpora(data),
    }
    run.write_record(path, config, data.splits["train"].corpus.layout, facts)


def _corpora(data: Data) -> dict[str, dict[str, Any]]:
    """What a resumed training must find again."""
    return {
        name: {
            "layout": split.corpus.layout.describe(),
            "sentences": len(split.corpus.sentences),
            "tokens": split.corpus.token_count,
            "crc32": zlib.crc32(split.corpus.text.encode("utf-8", "surrogatepass")),
        }
        for name, split in data.splits.items()
    }


def _describe_model(params: Params) -> str:
    return f"{sum(leaf.size for leaf in jax.tree.leaves(params)):,} parameters"


def compile_programs(session: Session, state: step.TrainState) -> step.TrainState:
    """Run every program once at every shape it will meet, on rows that count for nothing."""
    started = time.perf_counter()
    shapes = {
        name: sorted({placement.shape for placement in pass_over(session, name).batches})
        for name in session.data.splits
    }
    for number, shape in enumerate(shapes["train"], 1):
        session.line.show(
            f"compiling training step {number} of {len(shapes['train'])}", passing=True
        )
        empty = Group([_empty_batch(session, shape)], np.float32(0), 0)
        state, _ = take_step(session, state, empty)
    evaluated = sorted({shape for name in ("dev", "test") for shape in shapes.get(name, [])})
    for number, shape in enumerate(evaluated, 1):
        session.line.show(f"compiling evaluation {number} of {len(evaluated)}", passing=True)
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


def pass_over(session: Session, name: str, epoch: int | None = None) -> plan.EpochPlan:
    """A shuffled pass over a split for an epoch; without one, the pass for evaluation."""
    return plan.epoch_plan(
        session.data.shapes,
        session.data.splits[name].encoded.lengths,
        seed=session.config.train.seed,
        epoch=epoch or 0,
        shuffle=epoch is not None,
    )


def place(session: Session, placements: Sequence[plan.Placement]) -> Group:
    """Build the batches of one optimizer step, count what their losses are divided by."""
    batches = [make_batch(session.data.train, placement) for placement in placements]
    labels_of_tokens = np.concatenate([b.labels_BL[b.labels_BL != IGNORE] for b in batches])
    weights_C = session.recipe.class_weights_C
    count = labels_of_tokens.size
    if weights_C is not None:
        count = weights_C[labels_of_tokens].sum(dtype=np.float64)
    return Group(
        [session.devices.shard(batch) for batch in batches],
        np.float32(count),
        sum(placement.shape.cells for placement in placements),
    )


def take_step(
    session: Session, state: step.TrainState, group: Group
) -> tuple[step.TrainState, list[step.StepSums]]:
    """Take one optimizer step over its micro-batches."""
    programs, count = session.programs, group.step_count
    if session.config.train.accumulate == 1:
        state, sums = programs.train(state, group.batches[0], count)
        return state, [sums]
    gradient, all_sums = programs.zeros(state.params), []
    for number, batch in enumerate(group.batches):
        gradient, sums = programs.accumulate(state, gradient, batch, count, np.int32(number))
        all_sums.append(sums)
    return programs.apply(state, gradient, count), all_sums
