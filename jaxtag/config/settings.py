"""The settings of every command: frozen dataclasses that refuse what is out of range."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Format = Literal["auto", "conll", "conllu", "jsonl"]
Delimiter = Literal["auto", "tab", "space"]
Scheme = Literal["auto", "IO", "IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU", "plain"]
Parts = Literal["affixes", "characters", "none"]
ModelKind = Literal["bilstm", "transformer"]
PolicyName = Literal["float32", "bfloat16", "float16"]
LossScaling = Literal["auto", "dynamic", "static", "off"]
Decay = Literal["linear", "cosine"]

MAX_FLOAT32 = 3.4028234663852886e38


class InputError(Exception):
    """A mistake in what the user gave: shown as one line, exit status 2."""


class ConfigError(InputError):
    """A setting that is unknown, of the wrong type, or contradicts another."""


@dataclass(frozen=True)
class DataConfig:
    """The corpus files, how they are read, and the shapes their batches get."""

    train: Path | None = None
    """Training corpus; without it, the made-up demo corpus."""
    dev: Path | None = None
    """Development corpus: chooses the best model and stops early."""
    test: Path | None = None
    """Test corpus: the best model is scored on it once, at the end."""
    format: Format = "auto"
    """conll (columns), conllu, jsonl; auto looks at the name and the content."""
    delimiter: Delimiter = "auto"
    """Column delimiter; auto takes the tab if any line has one."""
    token_column: str = "auto"
    """Column of the token, from 1 (-1 is the last); in CoNLL-U also a name."""
    tag_column: str = "auto"
    """Column of the tag, likewise (CoNLL-U: upos unless given)."""
    comment: str = "auto"
    """Lines that begin so are comments; auto: '#' lines without a delimiter, in 3+ columns."""
    scheme: Scheme = "auto"
    """Tag scheme; auto takes the one with the fewest malformed tags, plain for parts of speech."""
    labels: tuple[str, ...] = ()
    """Names of the tag ids of JSON lines, in order: O B-PER I-PER …"""
    encoding: str = "utf-8"
    """Character encoding of the files."""
    shapes: int = 4
    """How many padded lengths the batches may have; each costs one compile per program."""
    row_multiple: int = 8
    """Rows of every batch are a multiple of this; the number of devices must divide it."""

    def __post_init__(self) -> None:
        _between(1, 1_000, "data.shapes", self.shapes)
        _between(1, 2**16, "data.row-multiple", self.row_multiple)


@dataclass(frozen=True)
class ReadConfig:
    """How a file is read where that differs from the training corpus; unless given, as that was."""

    format: Format | None = None
    """auto, conll (columns), conllu or jsonl."""
    delimiter: Delimiter | None = None
    """auto, tab or space."""
    token_column: str | None = None
    """Column of the token, from 1 (-1 is the last); in CoNLL-U also a name."""
    tag_column: str | None = None
    """Column of the tag, likewise."""
    comment: str | None = None
    """Lines that begin so are comments."""
    encoding: str | None = None
    """Character encoding of the file."""

    def over(self, trained: DataConfig) -> DataConfig:
        """The settings of a training with those given here in their place."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return dataclasses.replace(trained, **given)


@dataclass(frozen=True)
class EncodeConfig:
    """Tokens to ids."""

    min_count: int = 2
    """Words seen less often in the training file share the unknown id."""
    max_words: int = 30_000
    """Size of the vocabulary at most, the most frequent words first."""
    max_parts: int = 100_000
    """Likewise of the affixes or characters."""
    parts: Parts = "affixes"
    """What is seen inside a word: affixes and shape, its characters, or nothing."""

    def __post_init__(self) -> None:
        _between(1, 2**31 - 1, "encode.min-count", self.min_count)
        _between(0, 2**31 - 1, "encode.max-words", self.max_words)
        _between(0, 2**31 - 1, "encode.max-parts", self.max_parts)


@dataclass(frozen=True)
class ModelConfig:
    """The tagger's layers."""

    kind: ModelKind = "bilstm"
    """bilstm (recurrent) or transformer (attention)."""
    width: int = 128
    """Width of the embeddings and of a layer's output."""
    layers: int = 1
    """Number of layers."""
    heads: int = 4
    """Attention heads (transformer)."""
    feed_forward: int = 256
    """Width of the feed-forward layer (transformer)."""
    dropout: float = 0.3
    """Share of activations dropped in training."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "feed_forward"):
            _between(1, 2**16, f"model.{name.replace('_', '-')}", getattr(self, name))
        _within(0.0, 0.99, "model.dropout", self.dropout)
        if self.width % 2:
            raise ConfigError(
                f"model.width: expected an even number, for its two halves, found {self.width}"
            )
        if self.kind == "transformer" and self.width % self.heads:
            raise ConfigError(
                f"model.width: expected a multiple of model.heads, {self.heads}, found {self.width}"
            )


@dataclass(frozen=True)
class PrecisionConfig:
    """Number formats."""

    policy: PolicyName = "float32"
    """Type of the matrix products; parameters, norms, softmax and losses stay float32."""
    loss_scale: LossScaling = "auto"
    """Whether the loss is scaled; auto: dynamically in float16, else not."""
    init_scale: float = 65_536.0
    """Loss scale of the first step, with static of all; python -m jaxtag.diagnose finds it."""
    growth_interval: int = 2_000
    """Good steps in a row after which the loss scale doubles; after a bad one it halves."""
    min_scale: float = 2.0**-14
    """The smallest loss scale."""
    max_scale: float = 2.0**127
    """The largest."""
    max_skips: int = 25
    """Stop where so many steps in a row overflowed, as seen every train.log-steps."""
    scale_anyway: bool = False
    """Scale the loss although the policy is not float16."""
    report_every: int = 0
    """Write what each layer's gradients lose in the policy every so many steps; 0: never."""

    def __post_init__(self) -> None:
        _within(2.0**-126, MAX_FLOAT32, "precision.min-scale", self.min_scale)
        _within(self.min_scale, MAX_FLOAT32, "precision.max-scale", self.max_scale)
        _within(self.min_scale, self.max_scale, "precision.init-scale", self.init_scale)
        _between(1, 2**31 - 1, "precision.growth-interval", self.growth_interval)
        _between(1, 2**31 - 1, "precision.max-skips", self.max_skips)
        _between(0, 2**31 - 1, "precision.report-every", self.report_every)
        scaled = self.loss_scale in ("dynamic", "static")
        if scaled and self.policy != "float16" and not self.scale_anyway:
            raise ConfigError(
                f"precision.loss-scale: expected auto or off with {self.policy}, found "
                f"{self.loss_scale}: {self.policy} reaches as far as float32, so that scaling "
                "gains nothing and skips steps with a NaN unseen; leave it out, or add "
                "--precision.scale-anyway"
            )


@dataclass(frozen=True)
class TrainConfig:
    """The optimizer and the loop."""

    epochs: int = 15
    """Passes over the training corpus at most."""
    max_steps: int = 0
    """Optimizer steps at most; 0: as many as the epochs have."""
    seed: int = 0
    """Seeds parameters, dropout and the order of the data."""
    lr: float = 2e-3
    """Peak learning rate."""
    batch_tokens: int = 512
    """Cells (rows × padded length) of a batch at most, where the row multiple allows."""
    accumulate: int = 1
    """Micro-batches whose gradients are added up before one optimizer step."""
    warmup: float = 0.05
    """Share of all steps over which the learning rate rises from 0."""
    decay: Decay = "linear"
    """How the learning rate falls to 0 after the warm-up."""
    weight_decay: float = 0.01
    """AdamW's decay of matrices; biases, norms and embeddings are spared."""
    clip_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0: never."""
    label_smoothing: float = 0.0
    """Share of the target spread evenly over all classes."""
    class_weights: tuple[str, ...] = ()
    """Weights of tags other than 1, as O=0.5 B-PER=2."""
    patience: int = 5
    """Stop after this many evaluations without a better development score; 0: never."""
    eval_steps: int = 0
    """Evaluate every so many steps; 0: after each epoch."""
    log_steps: int = 20
    """Steps between two lines of metrics.jsonl."""

    def __post_init__(self) -> None:
        _between(1, 2**26, "train.batch-tokens", self.batch_tokens)
        for name in ("epochs", "accumulate", "log_steps"):
            _between(1, 2**31 - 1, f"train.{name.replace('_', '-')}", getattr(self, name))
        for name in ("max_steps", "patience", "eval_steps"):
            _between(0, 2**31 - 1, f"train.{name.replace('_', '-')}", getattr(self, name))
        _between(0, 2**32 - 1, "train.seed", self.seed)  # jax would take the last 32 bits of more
        for name in ("lr", "weight_decay", "clip_norm"):
            _within(0.0, MAX_FLOAT32, f"train.{name.replace('_', '-')}", getattr(self, name))
        _within(0.0, 1.0, "train.warmup", self.warmup)
        _within(0.0, 1.0, "train.label-smoothing", self.label_smoothing)


@dataclass(frozen=True)
class Config:
    """Train a token tagger: python -m jaxtag.train --data.train FILE --data.dev FILE."""

    data: DataConfig = field(default_factory=DataConfig)
    encode: EncodeConfig = field(default_factory=EncodeConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    config: Path | None = None
    """TOML file of these settings; flags win over it."""
    run: Path | None = None
    """Run directory; by default a fresh runs/NAME-N."""
    resume: bool = False
    """Go on from the run directory's last finished epoch, or from nothing."""
    overwrite: bool = False
    """Empty the run directory first, if it is one that jaxtag made."""


def _between(low: int, high: int, name: str, value: int) -> None:
    if not low <= value <= high:
        raise ConfigError(
            f"{name}: expected a whole number from {low:,} to {high:,}, found {value:,}"
        )


def _within(low: float, high: float, name: str, value: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{name}: expected a number from {low:g} to {high:g}, found {value:g}")
