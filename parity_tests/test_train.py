"""From corpora to a run directory, and from there to scores and predictions."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy

from jaxtag import checkpoint, corpus, evaluate, loop, predict, tagger, train
from jaxtag.batch import scatter_back
from jaxtag.config import DataConfig
from jaxtag.evaluation import Evaluation
from jaxtag.losses import LossSum
from jaxtag.metrics import TokenCounts
from jaxtag.plan import Placement, Shape
from jaxtag.progress import Meter, NotFiniteError
from jaxtag.run import RunError
from jaxtag.step import StepSums

pytestmark = pytest.mark.usefixtures("quick_compiles")

TIMES = {"seconds", "tokens_per_second"}


def lines_of(run: Path, kind: str | None = None) -> list[dict]:
    """The lines of metrics.jsonl, without what a clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in lines
        if kind in (None, line["kind"])
    ]


def result_of(run: Path) -> dict:
    return json.loads((run / "result.json").read_text())


def without(argv: list[str], *flags: str) -> list[str]:
    return [argument for argument in argv if argument.partition("=")[0] not in flags]


def scripted(monkeypatch, scores: list[float], loss: float = 0.0) -> list:
    """Give these scores and this loss to the evaluations; returns what parameters they saw."""
    seen = []

    def evaluate(program, params, *_, **__):
        seen.append(jax.tree.map(np.array, params))
        score = scores[len(seen) - 1]
        return Evaluation(loss, score, 1, None, None, None), []

    monkeypatch.setattr(loop, "evaluate", evaluate)
    return seen


class TestRunDirectory:
    def test_it_holds_exactly_the_promised_files(self, trained):
        assert sorted(str(p.relative_to(trained.run)) for p in trained.run.rglob("*")) == [
            ".jaxtag-run",
            "checkpoints",
            "checkpoints/000003",
            "checkpoints/000003/manifest.json",
            "checkpoints/000003/position.json",
            "checkpoints/000003/state.safetensors",
            "labels.json",
            "metrics.jsonl",
            "model.safetensors",
            "result.json",
            "run.json",
            "vocabulary.json",
        ]

    def test_every_file_is_json_or_safetensors_and_no_pickle(self, trained):
        for path in trained.run.rglob("*.*"):
            if path.suffix == ".safetensors":
                safetensors.numpy.load_file(path)
            elif path.suffix == ".jsonl":
                assert [json.loads(line) for line in path.read_text().splitlines()]
            elif path.is_file() and path.name != ".jaxtag-run":
                json.loads(path.read_text())

    def test_the_result_has_the_scores_of_dev_and_test_read_both_ways(self, trained):
        result = result_of(trained.run)
        assert result.keys() == {"step", "dev", "test"}
        for split in ("dev", "test"):
            scores = result[split]
            assert scores.keys() == {"accuracy", "loss", "tokens", "scheme", "lenient", "strict"}
            assert scores["scheme"] == "IOB2"
            for mode in ("lenient", "strict"):
                assert scores[mode].keys() == {"micro", "macro", "per_type"}
                assert {"precision", "recall", "f1"} <= scores[mode]["micro"].keys()
                assert scores[mode]["per_type"].keys() <= {"PER", "LOC"}

    def test_metrics_are_lines_of_json_whose_steps_increase(self, trained):
        trained_lines, dev_lines = lines_of(trained.run, "train"), lines_of(trained.run, "dev")
        total = json.loads((trained.run / "run.json").read_text())["total_steps"]
        assert [line["step"] for line in trained_lines] == list(range(1, total + 1))
        assert [line["step"] for line in dev_lines] == [total // 3, 2 * total // 3, total]
        assert len(lines_of(trained.run)) == total + 3

    def test_every_token_of_an_epoch_is_counted_once(self, trained, corpora):
        tokens = corpus.read(corpora / "train.conll").token_count
        for epoch in (1, 2, 3):
            counted = [line for line in lines_of(trained.run, "train") if line["epoch"] == epoch]
            assert sum(line["tokens"] for line in counted) == tokens

    def test_the_loss_falls(self, trained):
        losses = [line["loss"] for line in lines_of(trained.run, "train")]
        assert losses[-1] < losses[0]

    def test_each_program_compiles_once_for_each_shape_whatever_the_epochs(self, trained):
        shapes = json.loads((trained.run / "run.json").read_text())["shapes"]
        assert len(shapes) == 2
        counts = {name: trained.compiles[f"jit({name})"] for name in ("train", "evaluate")}
        assert counts == {"train": 2, "evaluate": 2}

    @pytest.mark.usefixtures("same_programs")
    def test_without_run_it_is_named_after_the_training_file(self, trained, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        train.main(trained.argv)
        assert result_of(Path("runs/train-1")) == result_of(trained.run)


class TestSeed:
    def test_the_same_seed_gives_the_same_bits(self, trained, tmp_path):
        train.main([*trained.argv, f"--run={tmp_path}"])
        assert lines_of(tmp_path) == lines_of(trained.run)
        assert result_of(tmp_path) == result_of(trained.run)
        name = "model.safetensors"
        assert (tmp_path / name).read_bytes() == (trained.run / name).read_bytes()

    def test_another_seed_gives_another_training(self, trained, tmp_path):
        argv = without(trained.argv, "--data.dev", "--data.test")
        train.main([*argv, f"--run={tmp_path}", "--train.seed=1"])
        one, other = (lines_of(run, "train") for run in (tmp_path, trained.run))
        assert len(one) == len(other)
        assert [line["loss"] for line in one] != [line["loss"] for line in other]


@pytest.mark.usefixtures("same_programs")
class TestBestModel:
    def test_of_equal_scores_the_earlier_model_is_kept(self, trained, tmp_path, monkeypatch):
        seen = scripted(monkeypatch, [0.5, 0.7, 0.7])
        train.main([*without(trained.argv, "--data.test"), f"--run={tmp_path}"])
        evaluated = lines_of(tmp_path, "dev")
        assert [line["best"] for line in evaluated] == [True, True, False]
        assert result_of(tmp_path)["step"] == evaluated[1]["step"]
        kept = safetensors.numpy.load_file(tmp_path / "model.safetensors")
        second, third = (checkpoint.flatten(params) for params in seen[1:])
        assert all(kept[name].tobytes() == second[name].tobytes() for name in second)
        assert any(kept[name].tobytes() != third[name].tobytes() for name in third)

    def test_training_stops_after_as_many_evaluations_without_a_better_score_as_patience_has(
        self, trained, tmp_path, monkeypatch
    ):
        scripted(monkeypatch, [0.5, 0.5])
        argv = without(trained.argv, "--data.test")
        train.main([*argv, f"--run={tmp_path}", "--train.patience=1"])
        assert len(lines_of(tmp_path, "dev")) == 2
        assert max(line["epoch"] for line in lines_of(tmp_path, "train")) == 2
        assert result_of(tmp_path)["step"] == lines_of(tmp_path, "dev")[0]["step"]

    @pytest.mark.parametrize(
        ("scores", "evaluations"),
        [([0.0, 0.0, 0.0], 3), ([0.0, 0.0, 0.5], 3), ([0.0, 0.5, 0.5], 3), ([0.5, 0.0], 2)],
    )
    def test_patience_begins_with_the_first_score_above_0(
        self, scores, evaluations, trained, tmp_path, monkeypatch
    ):
        scripted(monkeypatch, scores)
        argv = without(trained.argv, "--data.test")
        train.main([*argv, f"--run={tmp_path}", "--train.patience=1"])
        assert len(lines_of(tmp_path, "dev")) == evaluations

    @pytest.mark.parametrize("loss", [float("nan"), float("inf")])
    def test_a_loss_on_dev_that_is_not_finite_ends_the_training_and_keeps_no_model(
        self, loss, trained, tmp_path, monkeypatch
    ):
        scripted(monkeypatch, [0.5], loss)
        total = json.loads((trained.run / "run.json").read_text())["total_steps"]
        with pytest.raises(NotFiniteError, match=rf"^dev after step {total // 3}: .*--train\.lr"):
            train.main([*trained.argv, f"--run={tmp_path}"])
        assert not (tmp_path / "model.safetensors").exists()
        assert not (tmp_path / "result.json").exists()

    def test_a_loss_on_test_that_is_not_finite_leaves_no_result(
        self, trained, tmp_path, monkeypatch
    ):
        scripted(monkeypatch, [0.5], float("nan"))
        argv = without(trained.argv, "--data.dev")
        with pytest.raises(NotFiniteError, match=r"^test: expected a finite loss"):
            train.main([*argv, f"--run={tmp_path}"])
        assert not (tmp_path / "result.json").exists()

    def test_a_patience_of_0_never_stops(self, trained, tmp_path, monkeypatch):
        scripted(monkeypatch, [0.5, 0.4, 0.3])
        argv = without(trained.argv, "--data.test")
        train.main([*argv, f"--run={tmp_path}", "--train.patience=0"])
        assert len(lines_of(tmp_path, "dev")) == 3

    def test_evaluations_every_so_many_steps_do_not_depend_on_epochs(
        self, trained, tmp_path, monkeypatch
    ):
        scripted(monkeypatch, [0.1] * 20)
        argv = without(trained.argv, "--data.test")
        flags = ["--train.eval-steps=2", "--train.patience=0", "--train.log-steps=100"]
        train.main([*argv, f"--run={tmp_path}", *flags])
        total = json.loads((tmp_path / "run.json").read_text())["total_steps"]
        steps = [line["step"] for line in lines_of(tmp_path, "dev")]
        assert steps == sorted({*range(2, total + 1, 2), total})

    def test_without_dev_all_epochs_are_trained_and_the_last_model_kept(self, trained, tmp_path):
        argv = without(trained.argv, "--data.dev")
        train.main([*argv, f"--run={tmp_path}", "--train.patience=1"])
        last = lines_of(tmp_path)[-1]
        assert (last["epoch"], lines_of(tmp_path, "dev")) == (3, [])
        result = result_of(tmp_path)
        assert (result.keys(), result["step"]) == ({"step", "test"}, last["step"])
        kept = safetensors.numpy.load_file(tmp_path / "model.safetensors")
        state = tmp_path / "checkpoints" / "000003" / "state.safetensors"
        final = safetensors.numpy.load_file(state)
        assert all(kept[name].tobytes() == final[f"params.{name}"].tobytes() for name in kept)


class TestSettings:
    def test_four_micro_batches_are_one_step(self, trained, tmp_path):
        argv = without(trained.argv, "--train.batch-tokens", "--data.shapes", "--data.test")
        flags = ["--train.batch-tokens=32", "--data.shapes=1", "--train.accumulate=4"]
        train.main([*argv, f"--run={tmp_path}", *flags])
        record = json.loads((tmp_path / "run.json").read_text())
        (shape,) = record["shapes"]
        rows, length = shape["rows"], shape["length"]
        batches = -(-40 // rows)
        steps = -(-batches // 4)
        assert record["total_steps"] == 3 * steps
        first = lines_of(tmp_path, "train")[:steps]
        assert sum(line["cells"] for line in first) == batches * rows * length
        assert lines_of(tmp_path, "train")[-1]["loss"] < first[0]["loss"]

    def test_class_weights_and_smoothing_change_the_loss_of_training_alone(self, trained, tmp_path):
        argv = without(trained.argv, "--data.test")
        flags = ["--train.label-smoothing=0.1", "--train.class-weights", "O=0.5", "B-PER=2"]
        train.main([*argv, f"--run={tmp_path}", *flags])
        one, other = lines_of(tmp_path, "train")[0], lines_of(trained.run, "train")[0]
        assert one["loss"] != other["loss"]
        assert (one["tokens"], one["accuracy"]) == (other["tokens"], other["accuracy"])

    def test_the_most_steps_end_a_training_inside_an_epoch(self, trained, tmp_path):
        argv = without(trained.argv, "--data.shapes", "--data.test")
        flags = ["--data.shapes=1", "--train.max-steps=4"]
        train.main([*argv, f"--run={tmp_path}", *flags])
        lines = lines_of(tmp_path)
        assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 2, 3, 4]
        assert (lines[-1]["kind"], lines[-1]["step"]) == ("dev", 4)

    def test_parts_of_speech_get_accuracy_and_the_scores_of_each_tag(self, tmp_path, capsys):
        path = tmp_path / "pos.conll"
        path.write_text("The\tDET\ncat\tNOUN\nsat\tVERB\n\n" * 9)
        argv = [f"--data.{split}={path}" for split in ("train", "dev", "test")]
        argv += ["--model.width=8", "--train.batch-tokens=64", "--train.epochs=1"]
        train.main([*argv, f"--run={tmp_path / 'run'}"])
        result = result_of(tmp_path / "run")
        for split in ("dev", "test"):
            assert result[split].keys() == {"accuracy", "loss", "tokens", "macro", "per_tag"}
            assert {"DET", "NOUN", "VERB"} <= result[split]["per_tag"].keys()
            assert result[split]["tokens"] == 27
        (line,) = lines_of(tmp_path / "run", "dev")
        assert line["score"] == result["dev"]["accuracy"]
        evaluate.main([str(tmp_path / "run"), str(path)])
        assert f"accuracy {result['test']['accuracy']:.4f}" in capsys.readouterr().out

    @pytest.mark.usefixtures("same_programs")
    def test_a_label_that_train_lacks_is_named_once_and_its_entities_are_missed(
        self, trained, corpora, tmp_path, capsys
    ):
        path = tmp_path / "dev.conll"
        text = (corpora / "dev.conll").read_text()
        path.write_text(text.replace("B-PER", "B-MISC", 3))
        argv = [*without(trained.argv, "--data.dev", "--data.test"), f"--data.dev={path}"]
        train.main([*argv, f"--run={tmp_path / 'run'}"])
        warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
        assert len(warnings) == 1
        assert warnings[0].startswith("warning: dev has labels that training lacked: B-MISC;")
        scores = result_of(tmp_path / "run")["dev"]
        missed = scores["lenient"]["per_type"]["MISC"]
        assert (missed["gold"], missed["correct"], missed["predicted"]) == (3, 0, 0)
        assert scores["tokens"] == corpus.read(path).token_count
        gold = sum(kind["gold"] for kind in scores["lenient"]["per_type"].values())
        assert scores["lenient"]["micro"]["gold"] == gold


@pytest.mark.usefixtures("same_programs")
class TestShapes:
    def test_a_test_corpus_changes_no_batch_of_training_and_no_score_on_dev(
        self, trained, corpora, tmp_path
    ):
        path = tmp_path / "test.conll"
        longer = "".join("Ada\tB-PER\n" + "saw\tO\n" * (n - 1) + "\n" for n in (1, 3, 9, 30))
        path.write_text(longer + (corpora / "test.conll").read_text())
        argv = without(trained.argv, "--data.test")
        train.main([*argv, f"--run={tmp_path / 'without'}"])
        train.main([*argv, f"--run={tmp_path / 'with'}", f"--data.test={path}"])
        assert lines_of(tmp_path / "with") == lines_of(tmp_path / "without")
        assert result_of(tmp_path / "with")["dev"] == result_of(tmp_path / "without")["dev"]
        shapes = [
            json.loads((tmp_path / name / "run.json").read_text())["shapes"]
            for name in ("without", "with")
        ]
        assert shapes[1][:2] == shapes[0]
        assert [shape["length"] for shape in shapes[1][2:]] == [16, 32]


@pytest.mark.usefixtures("same_programs")
class TestResume:
    @pytest.mark.parametrize("finished", [1, 2])
    def test_a_training_interrupted_in_an_epoch_ends_as_the_uninterrupted_one(
        self, finished, trained, tmp_path, monkeypatch
    ):
        def save(directory, number, *state):
            checkpoint_save(directory, number, *state)
            saved.append(number)

        def take_step(*arguments):
            if len(saved) == finished:
                steps.append(1)
            if len(steps) == 3:
                raise KeyboardInterrupt
            return one_step(*arguments)

        saved, steps, checkpoint_save, one_step = [], [], checkpoint.save, loop.take_step
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", save)
            patch.setattr(loop, "take_step", take_step)
            with pytest.raises(KeyboardInterrupt):
                train.main([*trained.argv, f"--run={tmp_path}"])
        position = tmp_path / "checkpoints" / f"{finished:06}" / "position.json"
        kept = json.loads(position.read_text())["metrics_lines"]
        assert kept < len(lines_of(tmp_path)) < len(lines_of(trained.run))
        train.main([*trained.argv, f"--run={tmp_path}", "--resume"])
        assert lines_of(tmp_path) == lines_of(trained.run)
        assert result_of(tmp_path) == result_of(trained.run)
        name = "model.safetensors"
        assert (tmp_path / name).read_bytes() == (trained.run / name).read_bytes()

    def test_another_setting_is_refused_and_named_and_the_run_left_alone(self, trained):
        before = {p: p.read_bytes() for p in trained.run.rglob("*") if p.is_file()}
        argv = [*trained.argv, f"--run={trained.run}", "--resume"]
        with pytest.raises(RunError, match=r"train\.epochs was 3 in .*, found 4"):
            train.main([*without(argv, "--train.epochs"), "--train.epochs=4"])
        assert {p: p.read_bytes() for p in trained.run.rglob("*") if p.is_file()} == before

    def test_resuming_a_training_that_patience_ended_changes_nothing(
        self, trained, tmp_path, monkeypatch
    ):
        def files() -> dict[Path, bytes]:
            # The record says when and how the command was last given.
            return {
                path: path.read_bytes()
                for path in tmp_path.rglob("*")
                if path.is_file() and path.name != "run.json"
            }

        seen = scripted(monkeypatch, [0.5, 0.5])
        argv = [*without(trained.argv, "--data.test"), "--train.patience=1", f"--run={tmp_path}"]
        train.main(argv)
        before = files()
        train.main([*argv, "--resume"])
        assert files() == before
        assert len(seen) == 2

    @pytest.mark.parametrize("split", ["train", "dev"])
    def test_other_corpora_are_refused_and_the_run_left_alone(
        self, split, trained, corpora, tmp_path
    ):
        run, path = tmp_path / "run", tmp_path / f"{split}.conll"
        path.write_text((corpora / f"{split}.conll").read_text())
        argv = [*without(trained.argv, f"--data.{split}", "--data.test"), f"--data.{split}={path}"]
        train.main([*argv, f"--run={run}"])
        before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
        path.write_text(path.read_text().replace("B-PER", "B-MISC"))  # as many tokens and labels
        with pytest.raises(RunError, match=r"^--resume: the corpora are not those"):
            train.main([*argv, f"--run={run}", "--resume"])
        assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
        assert "B-MISC" not in (run / "labels.json").read_text()

    def test_resuming_from_nothing_starts_anew(self, trained, tmp_path):
        train.main([*trained.argv, f"--run={tmp_path / 'run'}", "--resume"])
        assert lines_of(tmp_path / "run") == lines_of(trained.run)

    def test_resuming_a_finished_training_changes_no_line_and_no_score(self, trained, tmp_path):
        train.main([*trained.argv, f"--run={tmp_path}"])
        train.main([*trained.argv, f"--run={tmp_path}", "--resume"])
        assert lines_of(tmp_path) == lines_of(trained.run)
        assert result_of(tmp_path) == result_of(trained.run)


class TestEvaluate:
    def test_a_run_scored_on_its_test_file_has_the_scores_of_its_result(
        self, trained, corpora, tmp_path, capsys
    ):
        out = tmp_path / "scores.json"
        evaluate.main([str(trained.run), str(corpora / "test.conll"), f"--output={out}"])
        expected = result_of(trained.run)["test"]
        scores = json.loads(out.read_text())
        assert scores["lenient"] == expected["lenient"]
        assert scores["strict"] == expected["strict"]
        assert scores["accuracy"] == expected["accuracy"]
        micro = next(line for line in capsys.readouterr().out.splitlines() if "micro" in line)
        assert f"{expected['lenient']['micro']['f1']:.3f}" in micro


# Tokens of 2 to 5 as in the tiny corpora, and what each format makes of them.
SENTENCES = [("Ada", "saw", "Rome", "."), ("Go", "!"), ("Kim", "is", "New", "Oslo", ".")]


def write_conll(path: Path) -> None:
    path.write_text("".join("".join(f"{t}\tO\n" for t in s) + "\n" for s in SENTENCES))


def write_conll_of_five_columns(path: Path) -> None:
    rows = [[f"{i}\t{t}\tNN\tO\t-\n" for i, t in enumerate(s, 1)] for s in SENTENCES]
    path.write_text("".join("# a comment\n" + "".join(row) + "\n" for row in rows))


def write_tokens_alone(path: Path) -> None:
    path.write_text("".join("".join(f"{t}\n" for t in s) + "\n" for s in SENTENCES))


def write_conllu(path: Path) -> None:
    rest = "\t_" * 6 + "\tSpaceAfter=No\n"
    rows = [[f"{i}\t{t}\t_{rest}" for i, t in enumerate(s, 1)] for s in SENTENCES]
    path.write_text("".join("".join(row) + "\n" for row in rows))


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"tokens": s, "id": 7}) + "\n" for s in SENTENCES))


def write_gzip(path: Path) -> None:
    write_conll(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


FORMATS = [
    (write_conll, "a.conll", "-1"),
    (write_conll_of_five_columns, "a.iob2", "-1"),
    (write_tokens_alone, "a.txt", "-1"),
    (write_conllu, "a.conllu", "misc"),
    (write_jsonl, "a.jsonl", "pred_tags"),
    (write_gzip, "a.conll.gz", "-1"),
]


class TestPredict:
    @pytest.mark.parametrize(("write", "name", "column"), FORMATS)
    def test_every_token_gets_one_tag_in_every_format(self, write, name, column, trained, tmp_path):
        write(tmp_path / name)
        out = tmp_path / "out" / name
        out.parent.mkdir()
        predict.main([str(trained.run), str(tmp_path / name), f"--output={out}"])
        read = corpus.read(out, DataConfig(tag_column=column))
        assert [sentence.tokens for sentence in read.sentences] == SENTENCES
        found = [
            [tag.removeprefix("SpaceAfter=No|Pred=") for tag in sentence.tags]
            for sentence in read.sentences
        ]
        assert found == tagger.load(trained.run).tag(SENTENCES)

    def test_without_the_predictions_the_output_is_the_input(self, trained, tmp_path, capsys):
        write_conll_of_five_columns(tmp_path / "a.iob2")
        predict.main([str(trained.run), str(tmp_path / "a.iob2")])
        written = capsys.readouterr().out.splitlines(keepends=True)
        cut = [line.rpartition("\t")[0] + "\n" if "\t" in line else line for line in written]
        assert "".join(cut) == (tmp_path / "a.iob2").read_text()

    def test_sentences_longer_than_any_training_shape_are_tagged_whole(self, trained):
        longest = max(shape["length"] for shape in self.shapes(trained))
        sentence = ["Ada"] * (longest + 1)
        (tags,) = tagger.load(trained.run).tag([sentence])
        assert len(tags) == longest + 1

    def shapes(self, trained) -> list[dict[str, int]]:
        return json.loads((trained.run / "run.json").read_text())["shapes"]

    def test_the_tags_of_a_sentence_do_not_depend_on_those_beside_it(self, trained):
        model = tagger.load(trained.run)
        alone = [model.tag([sentence])[0] for sentence in SENTENCES]
        assert model.tag(SENTENCES) == alone

    def test_more_sentences_of_known_lengths_compile_nothing(self, trained, compiles):
        model = tagger.load(trained.run)
        gold = [["O"] * len(sentence) for sentence in SENTENCES]
        model.tag([*SENTENCES, ["Ada"] * 30])
        model.score(SENTENCES, gold)
        before = compiles.copy()
        assert before["jit(predict)"] == 3  # two shapes of the training, one for the longest
        model.tag([*SENTENCES, ["Rome"] * 17, ["Go"], *SENTENCES])
        model.score([SENTENCES[2], SENTENCES[1]], [gold[2], gold[1]])
        assert compiles == before

    def test_sentences_without_tokens_get_no_tags(self, trained):
        model = tagger.load(trained.run)
        assert model.tag([]) == []
        assert model.tag([[], []]) == [[], []]
        assert [len(tags) for tags in model.tag([[], ["Go", "!"], []])] == [0, 2, 0]

    def test_standard_input_has_a_sentence_a_line(self, trained, monkeypatch, capsys):
        text = "".join(" ".join(sentence) + "\n" for sentence in SENTENCES)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        predict.main([str(trained.run), "-"])
        tags = tagger.load(trained.run).tag(SENTENCES)
        assert (
            capsys.readouterr().out == corpus.conll_corpus(zip(SENTENCES, tags, strict=True)).text
        )


class TestMeter:
    def sums(self, total: float) -> StepSums:
        counts = TokenCounts(np.int32(3), np.int32(4))
        return StepSums(LossSum(np.float32(total), np.int32(4)), counts)

    def test_a_summary_divides_the_sums_of_its_steps_once(self):
        meter = Meter()
        meter.add([self.sums(2.0), self.sums(4.0)], 10)
        meter.add([self.sums(6.0)], 6)
        found = meter.summary(step=2)
        assert (found.steps, found.loss, found.accuracy) == (2, 1.0, 0.75)
        assert (found.tokens, found.cells, found.padding_efficiency) == (12, 16, 0.75)
        assert (meter.sums, meter.steps, meter.cells) == ([], 0, 0)

    @pytest.mark.parametrize("total", [float("nan"), float("inf")])
    def test_a_loss_that_is_not_finite_is_an_error_naming_the_step(self, total):
        meter = Meter()
        meter.add([self.sums(total)], 10)
        with pytest.raises(NotFiniteError, match=r"^step 7: .*--train\.lr"):
            meter.summary(step=7)

    def test_of_several_steps_that_are_not_finite_the_first_is_named(self):
        meter = Meter()
        for totals in ([1.0, 2.0], [1.0, float("nan")], [float("inf"), 1.0], [1.0, 1.0]):
            meter.add([self.sums(total) for total in totals], 10)
        with pytest.raises(NotFiniteError, match=r"^step 1,002: "):
            meter.summary(step=1004)


class TestScatterBack:
    def test_a_token_without_an_output_is_an_error(self):
        placement = Placement(Shape(2, 1), *(np.array([n], np.int32) for n in (1, 0, 0)))
        outputs = [(placement, np.array([[7, 8]], np.int32))]
        offsets = np.array([0, 1, 3])  # the first sentence was placed nowhere
        with pytest.raises(ValueError, match="expected outputs for every token"):
            scatter_back(outputs, offsets)


def test_float16_trains_and_logs_its_scale_and_what_layers_lose(trained, tmp_path):
    run = tmp_path / "float16"
    flags = ["--precision.policy=float16", "--precision.init-scale=1e9", "--train.epochs=2"]
    flags += ["--precision.report-every=3"]
    train.main([*trained.argv, *flags, f"--run={run}"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert steps[-1]["skipped"] > 0
    assert steps[-1]["applied"] + steps[-1]["skipped"] == steps[-1]["step"]
    assert steps[-1]["loss_scale"] < 1e9
    assert all(np.isfinite(line["loss"]) for line in steps)
    reports = [line for line in lines if line["kind"] == "precision"]
    assert [line["step"] for line in reports] == [3, 6, 9]
    assert reports[0]["policy"] == "float16"
    assert [layer["name"] for layer in reports[0]["layers"]][-1] == "head"


def test_an_overflow_that_no_scale_ends_stops_with_the_layer_named(trained, tmp_path):
    run = tmp_path / "stuck"
    flags = ["--precision.policy=float16", "--precision.init-scale=1e30", "--precision.max-skips=2"]
    with pytest.raises(NotFiniteError) as caught:
        train.main([*trained.argv, *flags, f"--run={run}"])
    message = str(caught.value)
    assert message.startswith("step 2: the last 2 steps were skipped; the loss scale is ")
    assert "the first layer with inf in its gradient is head" in message
