"""``python -m jaxtag.diagnose``: where do gradients vanish, and which loss scale prevents it?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtag import config

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table

    from jaxtag import step
    from jaxtag.batch import Batch
    from jaxtag.diagnosis import Survey
    from jaxtag.model import Model, Params
    from jaxtag.plan import Shape

EXPONENTS = range(25)


@dataclass(frozen=True)
class DiagnoseConfig(config.Config):
    """Show where gradients vanish in 16 bits, for a run (--run) or for the flags of a training."""

    file: Path | None = None
    """Tagged corpus; by default the training corpus."""
    batches: int = 4
    """How many batches are looked at."""
    memory: bool = False
    """Also show where the memory goes, for each shape and policy; compiles each."""
    output: Path | None = None
    """Directory for diagnosis.json and diagnosis.png; by default the run's."""

    def __post_init__(self) -> None:
        if not 1 <= self.batches <= 10_000:
            raise config.ConfigError(
                f"batches: expected a whole number from 1 to 10,000, found {self.batches:,}"
            )


@dataclass(frozen=True)
class Subject:
    """What is looked at: parameters and some batches with the loss counts of their steps."""

    settings: config.Config
    recipes: dict[str, step.Recipe]
    """By policy."""
    params: Params
    batches: list[tuple[Batch, np.float32]]
    shapes: tuple[Shape, ...]


def subject(settings: DiagnoseConfig) -> Subject:
    """Read the run, or make fresh parameters for the flags; and the corpus."""
    import jax
    import numpy as np

    from jaxtag import batch, data, encode, losses, plan, tagger

    base = config.Config(
        data=settings.data,
        encode=settings.encode,
        model=settings.model,
        precision=settings.precision,
        train=settings.train,
    )
    if settings.run is not None:
        _refuse_flags_of_a_training(settings)
        trained = tagger.load(settings.run)
        base, encoder, shapes = trained.config, trained.encoder, trained.shapes
        file = settings.file or base.data.train or settings.run / "demo.train.conll"
        read = trained.read(file, config.ReadConfig(), tagged=True)
        tags = [sentence.tags or () for sentence in read.sentences]
        encoded = encode.encode([s.tokens for s in read.sentences], tags, encoder)
        shapes = plan.extend_shapes(
            shapes,
            encoded.lengths,
            batch_tokens=base.train.batch_tokens,
            row_multiple=trained.row_multiple,
        )
        params = jax.device_get(trained.params)
    else:
        if settings.file is not None:
            base = replace(base, data=replace(base.data, train=settings.file))
        found = data.read(base, lambda text: print(text, file=sys.stderr))
        encoder, encoded, shapes = found.encoder, found.train, found.shapes
        params = None
    recipes = {name: _recipe(base, encoder, name) for name in ("float32", "bfloat16", "float16")}
    if params is None:
        params = recipes["float32"].model.init(jax.random.key(base.train.seed))
    placements = plan.epoch_plan(shapes, encoded.lengths, seed=base.train.seed).batches
    weights_C = recipes["float32"].class_weights_C
    # A loss is divided by the count of all its step's micro-batches: whole steps are made.
    size = base.train.accumulate
    taken = placements[: -(-settings.batches // size) * size]
    made = [batch.make_batch(encoded, placement) for placement in taken]
    counts = [float(losses.loss_count(one.labels_BL, weights_C)) for one in made]
    pairs = [
        (one, np.float32(sum(counts[number - number % size :][:size])))
        for number, one in enumerate(made[: settings.batches])
    ]
    return Subject(base, recipes, params, pairs, shapes.shapes)


def _refuse_flags_of_a_training(settings: DiagnoseConfig) -> None:
    plain = DiagnoseConfig()
    for group in ("data", "encode", "model", "precision", "train"):
        if getattr(settings, group) != getattr(plain, group):
            raise config.ConfigError(
                f"{group}: expected no such flags beside --run, whose own settings hold; "
                "leave one of the two out"
            )


def _recipe(settings: config.Config, encoder: Any, policy: config.PolicyName) -> step.Recipe:
    from jaxtag import encode, optim, step, tagger

    schedule = optim.schedule(settings.train, 1)
    precision = config.PrecisionConfig(policy=policy)
    return step.Recipe(
        tagger.build_model(replace(settings, precision=precision), encoder),
        optim.build(settings.train, schedule),
        schedule,
        class_weights_C=encode.class_weights(settings.train.class_weights, encoder.labels),
        label_smoothing=settings.train.label_smoothing,
    )


def main(argv: Sequence[str]) -> None:
    """Survey the gradients in both 16-bit formats, print, and draw."""
    settings = config.parse(DiagnoseConfig, argv, prog="jaxtag.diagnose")
    from rich.console import Console

    from jaxtag import checkpoint, diagnosis, memory

    output = settings.output or settings.run
    if output is not None and output.exists() and not output.is_dir():
        raise config.ConfigError(f"output: expected a directory, found the file {output}")
    found = subject(settings)
    reference: Model = found.recipes["float32"].model
    scales = [2.0**exponent for exponent in EXPONENTS]
    surveys = {}
    for policy, tried in (("float16", scales), ("bfloat16", scales[:1])):
        survey = diagnosis.surveyor(found.recipes[policy], reference)
        surveys[policy] = survey(found.params, found.batches, tried)
    best = diagnosis.largest_finite_scale(found.recipes["float16"], found.params, found.batches)
    verdict = diagnosis.verdict(surveys["float16"], best)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(_table(surveys, best))
    print(verdict)
    report: dict[str, Any] = {
        "recommended_scale": best,
        "verdict": verdict,
        "surveys": {policy: survey.to_json() for policy, survey in surveys.items()},
    }
    if settings.memory:
        report["memory"] = rows = memory.memory_of_steps(
            found.recipes, found.batches[0][0], found.shapes
        )
        console.print(_memory_table(rows))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        checkpoint.write_json(output / "diagnosis.json", report)
        draw(surveys["float16"], best, output / "diagnosis.png")
        print(f"written: {output / 'diagnosis.json'}, {output / 'diagnosis.png'}")


def _table(surveys: dict[str, Survey], best: float | None) -> Table:
    from rich import box
    from rich.table import Table

    float16, bfloat16 = surveys["float16"], surveys["bfloat16"]
    title = "gradients, layer by layer; flushed and subnormal in float16 at a loss scale"
    table = Table(box=box.SIMPLE_HEAD, title=title)
    shown = {0: "1"}
    if best is not None and best in float16.scales and best > 1.0:
        shown[float16.scales.index(best)] = power(best)
    table.add_column("layer", no_wrap=True)
    table.add_column("largest", justify="right")
    for scale in shown.values():
        for what in ("flushed", "subnormal"):
            table.add_column(f"{what}\nat {scale}", justify="right")
    table.add_column("overflows\nfrom", justify="right")
    table.add_column("headroom\nin bits", justify="right")
    table.add_column("bfloat16\nflushed", justify="right")
    table.add_column("bfloat16\nerror", justify="right")
    for layer, other in zip(float16.layers, bfloat16.layers, strict=True):
        cells = [layer.name, f"{layer.largest:.2g}"]
        for index in shown:
            at = layer.at[index]
            cells += [at.bad] * 2 if at.bad else [f"{at.flushed:.2%}", f"{at.subnormal:.2%}"]
        # Measured, since embeddings add their gradients up in float32 and reach beyond 65,504.
        limit = layer.overflows_from(float16.scales)
        more, end = ("", limit) if limit else ("> ", float16.scales[-1])
        bits = "" if best is None else f"{more}{_log2(end / best) - 1:.0f}"
        cells += [f"{more}{power(end)}", bits]
        error = other.at[0].error
        cells += [f"{other.at[0].flushed:.2%}", other.at[0].bad or f"{error:.1e}"]
        table.add_row(*cells)
    return table


def _log2(value: float) -> float:
    import math

    return math.log2(value)


def power(scale: float) -> str:
    """A power of two as one reads it.

    >>> power(65536.0)
    '2^16'
    """
    return f"2^{_log2(scale):.0f}"


def _memory_table(rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="memory of a training step, in MB")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{v / 1e6:,.3g}" if isinstance(v, int) else str(v) for v in row.values()))
    return table


def draw(survey: Survey, best: float | None, path: Path) -> None:
    """Layers by scales: the share of gradients that is lost, and where they overflow."""
    import io

    import numpy as np
    from matplotlib.figure import Figure

    from jaxtag import files

    lost = np.array([[np.nan if at.bad else at.flushed for at in la.at] for la in survey.layers])
    most = max(1.0, 100.0 * np.nanmax(lost, initial=0.0))
    exponents = [round(_log2(scale)) for scale in survey.scales]
    figure = Figure(figsize=(10, 1.6 + 0.3 * len(survey.layers)), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("#444444")  # where a layer overflows
    image = axes.imshow(100.0 * lost, aspect="auto", cmap="OrRd", vmin=0.0, vmax=most)
    axes.set_yticks(range(len(survey.layers)), [layer.name for layer in survey.layers])
    axes.set_xticks(range(len(exponents)), [str(exponent) for exponent in exponents])
    axes.set(
        xlabel="loss scale, as a power of 2",
        title=f"{survey.policy}: gradients flushed to zero (grey: inf or NaN)",
    )
    if best in survey.scales:
        axes.axvline(survey.scales.index(best), color="black", linewidth=1.0, linestyle="--")
    figure.colorbar(image, label="% of float32's nonzero gradients")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    files.write_bytes(path, buffer.getvalue())


if __name__ == "__main__":
    config.run_command(main)
