"""Run directories: made fresh, marked, and never one that jaxtag did not make."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from jaxtag import corpus, run
from jaxtag.config import Config, DataConfig, TrainConfig
from jaxtag.encode import Encoder
from jaxtag.plan import Shape, ShapePlan
from jaxtag.run import MARKER, MetricsLog, RunError

LAYOUT = corpus.conll_corpus([(["a"], ["O"])]).layout
NOTHING = {"shapes": [{"length": 1, "rows": 8}], "corpora": {}}
"""Facts of a run that reading its record needs."""


@pytest.fixture(autouse=True)
def _inside_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def files(path: Path) -> dict[str, str]:
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


class TestOpenDirectory:
    def test_fresh_runs_are_numbered_from_1(self):
        opened = [run.open_directory(Config(), name) for name in ("demo", "demo", "news", "demo")]
        names = ["demo-1", "demo-2", "news-1", "demo-3"]
        assert opened == [Path("runs") / name for name in names]

    def test_a_gap_in_the_numbers_is_filled_and_a_file_of_that_name_left_alone(self):
        Path("runs").mkdir()
        Path("runs/demo-1").write_text("mine")
        Path("runs/demo-3").mkdir()
        assert run.open_directory(Config(), "demo") == Path("runs/demo-2")
        assert Path("runs/demo-1").read_text() == "mine"

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_named_directory_is_made_with_its_parents_and_marked(self, exists):
        path = Path("a/b")
        if exists:
            path.mkdir(parents=True)
        assert run.open_directory(Config(run=path), "demo") == path
        assert files(path) == {MARKER: ""}

    @pytest.mark.parametrize("flags", [{}, {"overwrite": True}, {"resume": True}])
    def test_a_directory_of_other_files_is_refused_and_stays_as_it_was(self, flags):
        Path("mine/inside").mkdir(parents=True)
        Path("mine/inside/thesis.txt").write_text("text")
        with pytest.raises(RunError, match=r"^mine: expected an empty directory or a jaxtag run"):
            run.open_directory(Config(run=Path("mine"), **flags), "demo")
        assert files(Path("mine")) == {"inside/thesis.txt": "text"}

    def test_a_run_needs_resume_or_overwrite(self):
        path = run.open_directory(Config(), "demo")
        (path / "result.json").write_text("{}")
        with pytest.raises(RunError, match=f"^{path}: .*--resume.*--overwrite"):
            run.open_directory(Config(run=path), "demo")
        assert files(path) == {MARKER: "", "result.json": "{}"}

    def test_overwrite_empties_a_run_but_does_not_follow_its_links(self):
        path = run.open_directory(Config(), "demo")
        Path("elsewhere").mkdir()
        Path("elsewhere/kept").write_text("kept")
        (path / "checkpoints").mkdir()
        (path / "checkpoints" / "old").write_text("old")
        (path / "link").symlink_to(Path("elsewhere").resolve())
        run.open_directory(Config(run=path, overwrite=True), "demo")
        assert [entry.name for entry in path.iterdir()] == [MARKER]
        assert files(Path("elsewhere")) == {"kept": "kept"}

    def test_resume_leaves_a_run_as_it_is(self):
        path = run.open_directory(Config(), "demo")
        (path / "metrics.jsonl").write_text("{}\n")
        run.open_directory(Config(run=path, resume=True), "demo")
        assert files(path) == {MARKER: "", "metrics.jsonl": "{}\n"}

    def test_a_file_is_no_run_directory(self):
        Path("run").write_text("mine")
        with pytest.raises(RunError, match=r"^run: expected a directory .* found a file"):
            run.open_directory(Config(run=Path("run")), "demo")
        assert Path("run").read_text() == "mine"

    @pytest.mark.parametrize("path", [None, Path("file/run")])
    def test_a_file_where_a_parent_should_be_is_an_error_naming_it(self, path):
        Path("runs").write_text("mine")
        Path("file").write_text("mine")
        with pytest.raises(RunError, match=r"(runs|file).*: run directory not made: "):
            run.open_directory(Config(run=path), "demo")

    def test_resume_and_overwrite_exclude_each_other(self):
        with pytest.raises(RunError, match="--resume and --overwrite exclude each other"):
            run.check(Config(run=Path("run"), resume=True, overwrite=True))

    def test_resume_needs_the_run_to_go_on_from(self):
        with pytest.raises(RunError, match="--resume: expected --run DIRECTORY"):
            run.check(Config(resume=True))

    def test_checking_makes_nothing(self):
        run.check(Config())
        run.check(Config(run=Path("run")))
        assert list(Path().iterdir()) == []


class TestRecord:
    def test_settings_layout_and_shapes_come_back(self):
        config = Config(
            data=DataConfig(train=Path("a.conll"), labels=("O",)), train=TrainConfig(lr=0.1)
        )
        path = run.open_directory(Config(), "demo")
        shapes = [{"length": 4, "rows": 16}, {"length": 9, "rows": 8}]
        run.write_record(path, config, LAYOUT, {"shapes": shapes})
        assert run.read_record(path) == (config, LAYOUT, ShapePlan((Shape(4, 16), Shape(9, 8))))

    def test_it_says_what_ran_and_with_which_versions(self):
        path = run.open_directory(Config(), "demo")
        run.write_record(path, Config(), LAYOUT, {"total_steps": 3})
        record = json.loads((path / "run.json").read_text())
        assert record["total_steps"] == 3
        assert {"python", "jax", "jaxlib", "flax", "optax", "numpy"} <= record["versions"].keys()
        assert {"jaxtag", "started", "argv", "git", "platform"} <= record.keys()

    def test_outside_of_a_checkout_there_is_no_revision(self, monkeypatch):
        def missing(*_, **__):
            raise FileNotFoundError("git")

        monkeypatch.setattr(subprocess, "run", missing)
        path = run.open_directory(Config(), "demo")
        run.write_record(path, Config(), LAYOUT, {})
        assert json.loads((path / "run.json").read_text())["git"] is None

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda path: None, "^r: expected a run directory, found nothing"),
            (lambda path: path.write_text(""), "^r: expected a run directory, found a file"),
            (lambda path: path.mkdir(), rf"^r: expected a run directory, found no {MARKER} in it"),
        ],
    )
    def test_what_is_no_run_is_named(self, make, message):
        make(Path("r"))
        with pytest.raises(RunError, match=message):
            run.read_record(Path("r"))

    @pytest.mark.parametrize("content", ["{}", "[]", "3", '{"config": {}, "layout": {"keys": 3}}'])
    def test_a_record_that_lacks_what_is_needed_is_named(self, content):
        path = run.open_directory(Config(), "demo")
        (path / "run.json").write_text(content)
        with pytest.raises(RunError, match=r"^runs/demo-1/run\.json: expected "):
            run.read_record(path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("config", []),
            ("layout", {"keys": ["tokens"]}),
            ("shapes", [[8, 4]]),
            ("shapes", [{"length": 4}]),
            ("shapes", 3),
        ],
    )
    def test_a_record_with_something_else_in_it_is_named(self, name, value):
        path = run.open_directory(Config(), "demo")
        run.write_record(path, Config(), LAYOUT, NOTHING)
        record = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps(record | {name: value}))
        with pytest.raises(RunError, match=r"^runs/demo-1/run\.json: expected the record"):
            run.read_record(path)

    def test_another_setting_than_the_resumed_run_had_is_named(self):
        path = run.open_directory(Config(), "demo")
        run.write_record(path, Config(train=TrainConfig(lr=0.1)), LAYOUT, NOTHING)
        with pytest.raises(RunError, match=r"train\.lr was 0\.1 in runs/demo-1, found 0\.2"):
            run.require_same_training(path, Config(train=TrainConfig(lr=0.2)), {})

    def test_how_a_run_is_called_and_logged_may_change_when_resumed(self):
        path = run.open_directory(Config(), "demo")
        facts = {"train": {"sentences": 3, "crc32": 7}}
        run.write_record(path, Config(), LAYOUT, NOTHING | {"corpora": facts})
        resumed = Config(run=path, resume=True, train=TrainConfig(log_steps=1))
        run.require_same_training(path, resumed, facts)

    @pytest.mark.parametrize("found", [{}, {"train": {"crc32": 8}}, {"dev": {"crc32": 7}}])
    def test_other_corpora_than_the_resumed_run_had_are_refused(self, found):
        path = run.open_directory(Config(), "demo")
        run.write_record(path, Config(), LAYOUT, NOTHING | {"corpora": {"train": {"crc32": 7}}})
        with pytest.raises(RunError, match=r"^--resume: .*runs/demo-1 was trained on"):
            run.require_same_training(path, Config(), found)


class TestEncoder:
    @pytest.mark.parametrize("word", ["the", "\u2028", "東京", "\ud83d", '"'])
    def test_words_parts_and_labels_come_back(self, word):
        path = run.open_directory(Config(), "demo")
        encoder = Encoder((word, "b"), ("O", f"B-{word}"), "characters", (word,))
        run.write_encoder(path, encoder, "IOB2")
        assert run.read_encoder(path) == (encoder, "IOB2")

    @pytest.mark.parametrize("name", ["labels.json", "vocabulary.json"])
    @pytest.mark.parametrize("content", ["{}", "[]", "3"])
    def test_a_file_that_lacks_what_is_needed_is_an_error(self, name, content):
        path = run.open_directory(Config(), "demo")
        run.write_encoder(path, Encoder((), (), "none"), "IOB2")
        (path / name).write_text(content)
        with pytest.raises(RunError, match=f"^{path}/{name}: .*restore the file"):
            run.read_encoder(path)


class TestMetricsLog:
    def test_each_line_is_there_as_soon_as_it_is_written(self, tmp_path):
        log = MetricsLog(tmp_path / "metrics.jsonl")
        log.write(kind="train", step=1, loss=0.1)
        assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {
            "kind": "train",
            "step": 1,
            "loss": 0.1,
        }
        log.close()

    def test_a_resumed_log_keeps_the_lines_of_the_checkpoint_and_drops_later_ones(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
        log = MetricsLog(path, keep_lines=2)
        log.write(step=3)
        log.close()
        assert log.lines == 3
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'

    def test_a_resumed_log_is_cut_in_its_place_and_not_written_anew(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text('{"step": 1}\n{"step": 2}\n')
        before = path.stat().st_ino
        log = MetricsLog(path, keep_lines=1)
        assert path.read_text() == '{"step": 1}\n'  # before the first line is written
        log.close()
        assert path.stat().st_ino == before

    def test_what_json_has_no_number_for_is_refused_and_no_line(self, tmp_path):
        log = MetricsLog(tmp_path / "metrics.jsonl")
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.write(loss=float("nan"))
        log.close()
        assert (log.lines, (tmp_path / "metrics.jsonl").read_text()) == (0, "")
