"""The scores that the README gives, each from one training with default settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxtag import loop
from jaxtag.config import Config, DataConfig

pytestmark = pytest.mark.long


def trained(files: list[Path], run: Path) -> dict[str, dict[str, object]]:
    """Scores on dev and test of a training with default settings."""
    train, dev, test = files
    loop.train(Config(data=DataConfig(train=train, dev=dev, test=test), run=run))
    return json.loads((run / "result.json").read_text())


def test_wnut17_test_f1_is_at_least_point_15(data_dir, tmp_path):
    names = ("wnut17train.conll", "emerging.dev.conll", "emerging.test.annotated")
    result = trained([data_dir / "wnut17" / name for name in names], tmp_path / "run")
    assert result["test"]["lenient"]["micro"]["f1"] >= 0.15


def test_ewt_test_accuracy_is_at_least_93_percent(data_dir, tmp_path):
    files = [data_dir / "ud_en_ewt" / f"en_ewt-ud-{s}.conllu" for s in ("train", "dev", "test")]
    assert trained(files, tmp_path / "run")["test"]["accuracy"] >= 0.93


def test_uner_chinese_test_f1_is_at_least_point_60(data_dir, tmp_path):
    folder = data_dir / "uner_zh_gsdsimp"
    files = [folder / f"zh_gsdsimp-ud-{s}.iob2" for s in ("train", "dev", "test")]
    assert trained(files, tmp_path / "run")["test"]["lenient"]["micro"]["f1"] >= 0.60
