"""A run directory in; a ``Tagger`` out, which gives every token one tag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxtag import checkpoint, corpus, plan, run, step
from jaxtag import model as models
from jaxtag.batch import make_batch, scatter_back
from jaxtag.config import Config
from jaxtag.corpus import Corpus, Layout
from jaxtag.device import Devices, local_devices, prefetch
from jaxtag.encode import Encoded, Encoder, encode
from jaxtag.evaluation import Evaluation, evaluate
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
    model: Model
    params: Params
    devices: Devices

    def read(self, path: Path, *, tagged: bool) -> Corpus:
        """Read a corpus as the training corpus was read, its columns included."""
        return corpus.read(path, self.config.data, tagged=tagged, like=self.layout)

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """Give every token of every sentence one tag, in order, however long the sentence."""
        encoded = encode(sentences, None, self.encoder)
        if not encoded.offsets[-1]:
            return [[] for _ in sentences]
        outputs = [
            (placement, self._predict(self.params, batch))
            for placement, batch in prefetch(
                self._plan(encoded).batches,
                lambda placement: (placement, self.devices.shard(make_batch(encoded, placement))),
            )
        ]
        found = scatter_back(
            [(placement, np.asarray(labels_BL)) for placement, labels_BL in outputs],
            encoded.offsets,
        )
        return [[self.encoder.labels[label] for label in row] for row in found]

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
        # Shapes come from these sentences, so that none is too long for them.
        shapes = plan.choose_shapes(
            encoded.lengths,
            shapes=self.config.data.shapes,
            batch_tokens=self.config.train.batch_tokens,
            row_multiple=self.config.data.row_multiple,
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
    config, layout = run.read_record(path)
    encoder, scheme = run.read_encoder(path)
    model = build_model(config, encoder)
    template = jax.eval_shape(model.init, jax.random.key(0))
    devices = local_devices(config.data.row_multiple)
    params = checkpoint.load_tree(path / run.MODEL, template)
    return Tagger(config, layout, encoder, scheme, model, devices.replicate(params), devices)
