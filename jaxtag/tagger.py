"""A run directory in; a ``Tagger`` out, which gives every token one tag."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax

from jaxtag import checkpoint, corpus, plan, run, step
from jaxtag import model as models
from jaxtag.config import Config, ReadConfig
from jaxtag.corpus import Corpus, Layout
from jaxtag.device import Devices, local_devices
from jaxtag.encode import Encoded, Encoder, encode
from jaxtag.evaluation import Evaluation, evaluate, run_program, tags_of
from jaxtag.model import Model, Params
from jaxtag.precision import Policy


@dataclass(frozen=True)
class Tagger:
    """A trained model with all that it needs to read tokens and to name tags."""

    config: Config
    layout: Layout
    """How the training corpus was laid out."""
    encoder: Encoder
    scheme: str
    shapes: plan.ShapePlan
    row_multiple: int
    model: Model
    params: Params
    devices: Devices

    def read(self, path: Path, options: ReadConfig, *, tagged: bool) -> Corpus:
        """Read a corpus as the training corpus was read, but for what the options say."""
        return corpus.read(path, options.over(self.config.data), tagged=tagged, like=self.layout)

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Give every token of every sentence one tag, in order, however long the sentence."""
        encoded = encode(sentences, None, self.encoder)
        if not encoded.offsets[-1]:
            return [[] for _ in sentences]
        outputs = run_program(
            self._predict, self.params, encoded, self._plan(encoded), self.devices
        )
        return tags_of(outputs, encoded, self.encoder.labels)

    def score(
        self, sentences: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]
    ) -> tuple[Evaluation, list[list[str]]]:
        """Tag sentences whose tags are known: scores, and the predicted tags."""
        encoded = encode(sentences, gold, self.encoder)
        return evaluate(
            self._evaluate,
            self.params,
            encoded,
            gold,
            self._plan(encoded),
            labels=self.encoder.labels,
            scheme=self.scheme,
            devices=self.devices,
        )

    @cached_property
    def _predict(self) -> Callable[..., Any]:
        return step.predict_program(self.model, self.devices)

    @cached_property
    def _evaluate(self) -> Callable[..., Any]:
        return step.eval_program(self.model, self.devices)

    def _plan(self, encoded: Encoded) -> plan.EpochPlan:
        shapes = plan.extend_shapes(
            self.shapes,
            encoded.lengths,
            batch_tokens=self.config.train.batch_tokens,
            row_multiple=self.row_multiple,
        )
        return plan.epoch_plan(shapes, encoded.lengths, shuffle=False)


def build_model(config: Config, encoder: Encoder) -> Model:
    """The model that a config and an encoder's sizes determine."""
    sizes = models.Sizes(
        words=encoder.vocabulary_size,
        kind=encoder.kind,
        parts=len(encoder.parts) + 1,
        classes=len(encoder.labels),
    )
    return models.build(config.model, Policy(config.precision.policy), sizes)


def load(path: Path) -> Tagger:
    """Read a run directory; nothing else is needed.

    Raises ``InputError`` where it is no run, or a file of it is missing or does not fit.
    """
    config, layout, shapes = run.read_record(path)
    encoder, scheme = run.read_encoder(path)
    model = build_model(config, encoder)
    template = jax.eval_shape(model.init, jax.random.key(0))
    params = checkpoint.load_tree(path / run.MODEL, template)
    # This machine may have another number of devices than the one that trained.
    multiple = math.lcm(config.data.row_multiple, jax.local_device_count())
    devices = local_devices(multiple)
    shapes = plan.round_rows(shapes, multiple)
    return Tagger(
        config, layout, encoder, scheme, shapes, multiple, model, devices.replicate(params), devices
    )
