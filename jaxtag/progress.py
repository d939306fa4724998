"""Sums of steps in; one line of progress and one line of ``metrics.jsonl`` now and then out."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

import jax
import numpy as np

from jaxtag.config import InputError
from jaxtag.loss_scale import LossScaleState
from jaxtag.step import StepSums

PLAIN_SECONDS = 10.0  # between two lines where the output is no terminal


class NotFiniteError(InputError):
    """A loss that is infinite or no number: training on would only spread it."""


def require_finite(loss: float, where: str) -> None:
    """Raise ``NotFiniteError`` where a loss is infinite or no number."""
    if not math.isfinite(loss):
        raise NotFiniteError(
            f"{where}: expected a finite loss, found {loss}; lower --train.lr "
            "or set --train.clip-norm"
        )


@dataclass(frozen=True)
class Summary:
    """What the steps since the last summary did."""

    steps: int
    loss: float
    """Per real token (or unit of class weight); 0 where none counted, NaN where all overflowed."""
    accuracy: float
    tokens: int
    cells: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Real tokens only."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def padding_efficiency(self) -> float:
        """Share of the cells that hold a token."""
        return self.tokens / self.cells if self.cells else 0.0


@dataclass
class Meter:
    """Gathers steps; sums stay on the device until a summary is asked for."""

    sums: list[list[StepSums]] = field(default_factory=list)
    """Of each step the sums of its micro-batches."""
    cells: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, sums: list[StepSums], cells: int) -> None:
        """Count one optimizer step: the sums of its micro-batches and all their cells."""
        self.sums.append(sums)
        self.cells += cells

    @property
    def steps(self) -> int:
        """Steps since the last summary."""
        return len(self.sums)

    def summary(self, step: int, *, may_overflow: bool = False) -> Summary:
        """Fetch the sums up to ``step`` and start anew.

        ``NotFiniteError`` names the first step whose loss is not finite; where a step ``may
        overflow``, and is skipped then, its loss is left out.
        """
        fetched = jax.device_get(self.sums)
        kept = []
        for back, sums in zip(range(len(fetched) - 1, -1, -1), fetched, strict=True):
            loss = sum(float(part.loss.total) for part in sums)
            if math.isfinite(loss):
                kept += sums
            elif not may_overflow:
                require_finite(loss, f"step {step - back:,}")
        parts = [part for sums in fetched for part in sums]
        total = sum(np.float64(part.loss.total) for part in kept)
        count = sum(np.float64(part.loss.count) for part in kept)
        tokens = sum(int(part.tokens.total) for part in parts)
        seen = sum(int(part.tokens.total) for part in kept)
        correct = sum(int(part.tokens.correct) for part in kept)
        now = time.perf_counter()
        made = Summary(
            steps=self.steps,
            loss=float(total / count) if count else 0.0 if kept or not parts else math.nan,
            accuracy=correct / seen if seen else 0.0,
            tokens=tokens,
            cells=self.cells,
            seconds=now - self.started,
        )
        self.sums, self.cells, self.started = [], 0, now
        return made

    def restart_clock(self) -> None:
        """Leave out the time since the last summary, spent on something else than steps."""
        self.started = time.perf_counter()


def scaling_line(scaling: LossScaleState) -> dict[str, Any]:
    """The counts of loss scaling as ``metrics.jsonl`` has them."""
    return {
        "loss_scale": float(scaling.scale),
        "applied": int(scaling.applied),
        "skipped": int(scaling.skipped),
        "consecutive_skips": int(scaling.consecutive_skips),
    }


class ProgressLine:
    """One line that is rewritten on a terminal, or a plain line every few seconds elsewhere."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._shown = -math.inf
        self._open = False

    def show(self, text: str, *, passing: bool = False) -> None:
        """Show the line; where it is ``passing``, on a terminal alone."""
        if passing and not self._terminal:
            return
        now = time.monotonic()
        if self._terminal:
            self._stream.write(f"\r\x1b[2K{text}")
            self._open = True
        elif now - self._shown >= PLAIN_SECONDS:
            self._stream.write(f"{text}\n")
            self._shown = now
        self._stream.flush()

    def say(self, text: str) -> None:
        """Write a line that stays, above the progress line."""
        if self._open:
            self._stream.write("\r\x1b[2K")
            self._open = False
        self._stream.write(f"{text}\n")
        self._stream.flush()


def duration(seconds: float) -> str:
    """Write seconds as a clock does.

    >>> duration(75), duration(3675.4)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def metrics_line(summary: Summary) -> dict[str, Any]:
    """The numbers of a summary as ``metrics.jsonl`` has them."""
    return {
        "loss": summary.loss if math.isfinite(summary.loss) else None,
        "accuracy": summary.accuracy,
        "tokens": summary.tokens,
        "cells": summary.cells,
        "padding_efficiency": summary.padding_efficiency,
        "tokens_per_second": summary.tokens_per_second,
        "seconds": summary.seconds,
    }
