"""Measurements of the parity tests in; one self-contained page out."""

from __future__ import annotations

import base64
import html
import io
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from claims import CLAIMS


@dataclass(frozen=True)
class Measured:
    """The worst value of one test for one claim."""

    claim: str
    value: float
    case: str
    """What gave the worst value."""
    cases: int


@dataclass(frozen=True)
class Curve:
    """Losses of one training on both sides, step by step."""

    name: str
    torch: Sequence[float]
    jaxtag: Sequence[float]


@dataclass
class Parity:
    """Gathers what the tests measure, and holds each value to its claim's bound."""

    measured: list[Measured] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def check(self, claim: str, value: float, *, case: str, cases: int) -> None:
        """Record the worst value of a test; fails where it exceeds the claim's bound, or is NaN."""
        self.measured.append(Measured(claim, float(value), case, cases))
        bound = CLAIMS[claim]
        assert value <= bound.bound, (
            f"claim {claim}, {bound.text}: {value:g} {bound.unit} in {case}, "
            f"at most {bound.bound:g}"
        )

    def curve(self, name: str, torch: Sequence[float], jaxtag: Sequence[float]) -> None:
        """Record a training for the picture."""
        self.curves.append(Curve(name, list(torch), list(jaxtag)))


def write(parity: Parity, path: Path, *, failed: int) -> None:
    """Write the page: a row for each claim, and a picture of the trainings.

    ``failed`` tests may have left their worst values out, and the page says so.
    """
    rows = "\n".join(_row(key, parity.measured) for key in CLAIMS)
    versions = ", ".join(map(_version, ("jax", "flax", "optax", "torch")))
    machine = html.escape(f"{processor()}, {os.cpu_count()} cores, {platform.platform()}")
    flags = html.escape(os.environ.get("XLA_FLAGS", "") or "none")
    picture = "<p>No training was measured in this run.</p>"
    if parity.curves:
        picture = f'<img alt="Training losses" src="{_picture(parity.curves)}">'
    path.write_text(
        _PAGE.format(
            rows=rows,
            failed=f"<p><strong>{failed} {_FAILED}</strong></p>" if failed else "",
            versions=versions,
            machine=machine,
            flags=flags,
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            picture=picture,
        ),
        encoding="utf-8",
    )


def _version(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} not installed"


def _row(key: str, measured: Sequence[Measured]) -> str:
    claim = CLAIMS[key]
    found = [one for one in measured if one.claim == key]
    if not found:
        cells = ["not run", "", "0", ""]
    else:
        worst = max(found, key=lambda one: (one.value != one.value, one.value))
        verdict = "holds" if worst.value <= claim.bound else "fails"
        cells = [f"{worst.value:.3g}", worst.case, f"{sum(o.cases for o in found):,}", verdict]
    bound = f"{claim.bound:g} {claim.unit}"
    return (
        "<tr>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in (key, claim.text, bound, *cells))
        + "</tr>"
    )


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _picture(curves: Sequence[Curve]) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2 * len(curves)), layout="constrained")
    axes = figure.subplots(len(curves), 2, squeeze=False)
    for (left, right), curve in zip(axes, curves, strict=True):
        left.plot(curve.torch, label="torch", linewidth=2.5, color="#bbbbbb")
        left.plot(curve.jaxtag, label="jaxtag", linewidth=0.8, color="#1f5fa8")
        left.set(title=curve.name, xlabel="step", ylabel="loss per token", yscale="log")
        left.legend(frameon=False)
        gap = [
            abs(a - b) / abs(a) if a else 0.0
            for a, b in zip(curve.torch, curve.jaxtag, strict=True)
        ]
        right.plot(gap, linewidth=0.8, color="#a83232")
        right.axhline(CLAIMS["11a"].bound, color="black", linewidth=0.8, linestyle="--")
        right.set(title="relative difference, and its bound", xlabel="step", yscale="log")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


_FAILED = "tests failed: their claims may not hold, whatever the table says of the rest."
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>jaxtag and PyTorch</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
   padding: 0 1rem; }}
 table {{ border-collapse: collapse; width: 100%; font-size: 0.9rem; }}
 th, td {{ border-bottom: 1px solid #ccc; padding: 0.3rem 0.6rem; text-align: left;
   vertical-align: top; }}
 td:nth-child(4), td:nth-child(6) {{ text-align: right; white-space: nowrap; }}
 img {{ max-width: 100%; }}
 @media (prefers-color-scheme: dark) {{ body {{ background: #16181c; color: #ddd; }}
   img {{ background: white; }} }}
</style>
<h1>jaxtag equals PyTorch: measured</h1>
<p>{date}. {versions}. {machine}. XLA_FLAGS: {flags}. eps = 2<sup>-23</sup>;
S = w · max(1, |x<sub>max</sub> - x<sub>label</sub>|, ln C,
smoothing · mean(x<sub>max</sub> - x<sub>c</sub>)).</p>
{failed}<table>
<tr><th>#</th><th>claim</th><th>bound</th><th>worst measured</th><th>in</th><th>cases</th>
<th></th></tr>
{rows}
</table>
<h2>Trainings, step by step</h2>
{picture}
</html>
"""
