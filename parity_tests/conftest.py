"""What all tests share: compiled programs between runs, and where the public corpora lie."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import pytest
import report
from report import Parity

from jaxtag import step, train

STARTED = time.monotonic()

# What torch said is recorded in the fixtures, and test_records.py compares with that.
NEED_TORCH = ["test_losses.py", "test_mutations.py", "test_parity_[!p]*.py", "test_reference.py"]
NEED_TORCH += ["test_token_counts.py", "torch_*.py", "weights.py"]
HAS_TORCH = find_spec("torch") is not None
collect_ignore_glob = [] if HAS_TORCH else NEED_TORCH


def pytest_report_header() -> str | None:
    return None if HAS_TORCH else "torch is not installed: comparing with its records alone"


# Compiling costs more than all else here, so compiled programs outlive the test run. Devices stay
# as they are: a test of several fake ones starts its own process.
jax.config.update(
    "jax_compilation_cache_dir",
    os.environ.get("JAXTAG_TEST_CACHE", str(Path.home() / ".cache" / "jaxtag-tests")),
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public corpora, which lie beside this checkout on some machines only."""
    path = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not path.is_dir():
        pytest.skip(f"the public corpora are not beside this checkout: no {path}")
    return path


PARITY = pytest.StashKey[Parity]()


@pytest.fixture
def parity(pytestconfig) -> Parity:
    """Holds what a test measures to its claim's bound, and keeps it for the report."""
    return pytestconfig.stash[PARITY]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PARITY] = Parity()
    path = config.getoption("--parity-report")
    if path is not None:
        config.option.markexpr = "parity"
        if not path or Path(path).is_dir() or not os.access(Path(path).parent, os.W_OK):
            raise pytest.UsageError(f"--parity-report: expected a file to write, found {path!r}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--parity-report")
    if path is not None and session.testscollected and not session.config.option.collectonly:
        report.write(session.config.stash[PARITY], Path(path), failed=session.testsfailed)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--parity-report",
        metavar="FILE",
        help="run the parity tests, long ones too, and write what they measured as a page",
    )
    parser.addoption(
        "--long-minutes",
        type=float,
        help="start no further long test after so many minutes",
    )
    parser.addoption(
        "--long-seed", default="", help="which order the long tests are taken in, then"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long tests in an order of their own for each seed, so that a sample moves about."""
    if config.getoption("--long-minutes") is not None:
        seed = config.getoption("--long-seed")
        items.sort(key=lambda item: hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest())


def pytest_runtest_setup(item: pytest.Item) -> None:
    minutes = item.config.getoption("--long-minutes")
    if minutes is not None and time.monotonic() - STARTED > 60 * minutes:
        pytest.skip(f"the {minutes:g} minutes for long tests are over")


@contextlib.contextmanager
def _quick_compiles() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def quick_compiles() -> Iterator[None]:
    """Compile in a fifth of the time, where it does not matter how the program rounds."""
    with _quick_compiles():
        yield


@contextlib.contextmanager
def _counted_compiles() -> Iterator[Counter[str]]:
    compiles: Counter[str] = Counter()

    def listen(event: str, _: float, **facts: str) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiles[facts["fun_name"]] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiles
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def compiles() -> Iterator[Counter[str]]:
    """How often a test has compiled a program of each name so far."""
    with _counted_compiles() as counted:
        yield counted


@dataclass(frozen=True)
class Trained:
    """A finished tiny training."""

    run: Path
    argv: list[str]
    """All its flags but ``--run``."""
    compiles: Counter[str]
    """How often it compiled a program of each name."""
    programs: dict[str, Any]
    """What the functions of ``step`` that make programs returned."""


@pytest.fixture(scope="session")
def corpora(tmp_path_factory) -> Path:
    """A directory with train, dev and test.conll: 40 sentences each, of 2, 4 and 5 tokens."""
    directory = tmp_path_factory.mktemp("corpora")
    names = [("Ada", "PER"), ("Rome", "LOC"), ("Kim", "PER"), ("Oslo", "LOC")]
    for shift, split in enumerate(("train", "dev", "test")):
        text = ""
        for i in range(40):
            (one, kind), (other, other_kind) = names[i % 4], names[(i + 1 + shift) % 4]
            text += {
                0: f"{one}\tB-{kind}\nsaw\tO\n{other}\tB-{other_kind}\n.\tO\n\n",
                1: "Go\tO\n!\tO\n\n",
                2: f"{other}\tB-{other_kind}\nis\tO\nNew\tB-LOC\n{one}\tI-LOC\n.\tO\n\n",
            }[(i + i // 4) % 3]
        (directory / f"{split}.conll").write_text(text)
    return directory


@pytest.fixture(scope="session")
def trained(corpora, tmp_path_factory) -> Trained:
    """Three epochs on the tiny corpora, with evaluations, in two shapes."""
    run = tmp_path_factory.mktemp("runs") / "trained"
    argv = [f"--data.{split}={corpora / split}.conll" for split in ("train", "dev", "test")]
    argv += ["--model.width=8", "--data.shapes=2", "--train.batch-tokens=64"]
    argv += ["--train.epochs=3", "--train.log-steps=1"]
    programs = {}

    def recorded(name: str) -> Any:
        build = getattr(step, name)

        def record(*arguments: Any) -> Any:
            programs[name] = build(*arguments)
            return programs[name]

        return record

    with _quick_compiles(), _counted_compiles() as compiles, pytest.MonkeyPatch.context() as patch:
        for name in ("train_programs", "eval_program"):
            patch.setattr(step, name, recorded(name))
        train.main([*argv, f"--run={run}"])
    return Trained(run, argv, compiles, programs)


@pytest.fixture
def same_programs(trained, monkeypatch) -> None:
    """Save a training that differs in none of the numbers that they hold its own programs."""
    for name, program in trained.programs.items():
        monkeypatch.setattr(step, name, lambda *_, program=program: program)
