"""Settings: flags, TOML files and JSON give the same records, and mistakes are named."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxtag import config, evaluate, predict, train
from jaxtag.config import Config, ConfigError, DataConfig, ModelConfig, ReadConfig, TrainConfig


def flag_names(config_class: type, table: str = "") -> list[str]:
    names = []
    for field in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(field.default_factory):
            names += flag_names(field.default_factory, f"{table}{field.name}.")
        else:
            names.append(f"--{table}{field.name}".replace("_", "-"))
    return names


@pytest.fixture
def toml(tmp_path):
    """Write a TOML file."""

    def write(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


class TestFlags:
    def test_no_flags_are_the_defaults(self):
        assert config.parse(Config, [], prog="train") == Config()

    def test_a_flag_sets_its_field(self):
        parsed = config.parse(
            Config,
            ["--data.train", "a.conll", "--data.labels", "O", "B-X", "--train.batch-tokens", "64"],
            prog="train",
        )
        assert parsed == Config(
            data=DataConfig(train=Path("a.conll"), labels=("O", "B-X")),
            train=TrainConfig(batch_tokens=64),
        )

    def test_help_shows_every_option(self, capsys):
        with pytest.raises(SystemExit) as exit_:
            train.main(["--help"])
        assert exit_.value.code == 0
        shown = capsys.readouterr().out
        assert [
            name for name in flag_names(Config) if not re.search(rf" {re.escape(name)}[ ,]", shown)
        ] == []

    def test_help_and_a_wrong_flag_import_neither_jax_nor_numpy(self):
        program = (
            "import sys\n"
            "from jaxtag import diagnose, evaluate, predict, train\n"
            "for command in (diagnose, evaluate, predict, train):\n"
            "    for flag in ('--help', '--wrong'):\n"
            "        try: command.main([flag])\n"
            "        except SystemExit: pass\n"
            "print(sorted({'jax', 'numpy', 'flax', 'optax'} & set(sys.modules)), file=sys.stderr)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert done.stderr.endswith("[]\n")

    @pytest.mark.parametrize(
        ("argv", "nearest"),
        [
            (["--data.trian", "x"], "--data.train"),
            (["--train.epoch", "3"], "--train.epochs"),
            (["--epochs", "3"], "--train.epochs"),
        ],
    )
    def test_an_unknown_flag_exits_with_2_and_names_the_nearest(self, argv, nearest, capsys):
        with pytest.raises(SystemExit) as exit_:
            train.main(argv)
        assert exit_.value.code == 2
        printed = capsys.readouterr().err
        assert f"Unrecognized options: {argv[0]}" in printed
        assert f"{nearest} " in printed

    @pytest.mark.parametrize(
        "argv",
        [["--train.epochs", "many"], ["--precision.policy", "float8"], ["--train.lr"]],
    )
    def test_a_value_that_is_none_exits_with_2_and_names_the_flag(self, argv, capsys):
        with pytest.raises(SystemExit) as exit_:
            train.main(argv)
        assert exit_.value.code == 2
        assert argv[0] in capsys.readouterr().err

    @pytest.mark.parametrize("command", [evaluate, predict])
    def test_a_command_without_its_arguments_exits_with_2(self, command, capsys):
        with pytest.raises(SystemExit) as exit_:
            command.main([])
        assert exit_.value.code == 2
        assert "required" in capsys.readouterr().err

    @pytest.mark.parametrize("command", [evaluate, predict])
    def test_a_command_that_takes_no_settings_file_does_not_know_the_flag(
        self, command, toml, capsys
    ):
        with pytest.raises(SystemExit) as exit_:
            command.main(["run", "file", "--config", str(toml(""))])
        assert exit_.value.code == 2
        assert "--config" in capsys.readouterr().err


class TestToml:
    def test_tables_are_groups_of_flags_with_dashes_or_underscores(self, toml):
        path = toml('run = "r"\n[train]\nbatch-tokens = 64\nmax_steps = 3\nlr = 1\n')
        expected = Config(run=Path("r"), train=TrainConfig(batch_tokens=64, max_steps=3, lr=1.0))
        assert config.load_toml(Config, path) == expected

    @pytest.mark.parametrize("form", ["--config {}", "--config={}"])
    def test_flags_win_over_the_file_and_the_file_over_the_defaults(self, form, toml):
        path = toml('[train]\nepochs = 3\nlr = 0.5\n[data]\nlabels = ["O", "B-X"]\n')
        argv = ["--train.epochs", "7", *form.format(path).split(" ")]
        parsed = config.parse(Config, argv, prog="train")
        assert (parsed.train.epochs, parsed.train.lr) == (7, 0.5)
        assert parsed.data.labels == ("O", "B-X")
        assert parsed.config == path

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[train]\nepoch = 3", r"train\.epoch: no such setting; perhaps train\.epochs\?"),
            ("[trian]\nepochs = 3", r"trian: no such setting; perhaps train\?"),
            ("zzz = 3", r"zzz: no such setting; known: data, encode, "),
            ('[train]\nepochs = "3"', r"train\.epochs: expected a whole number, found '3'"),
            ("[train]\nepochs = 3.5", r"train\.epochs: expected a whole number, found 3\.5"),
            ("[train]\nepochs = true", r"train\.epochs: expected a whole number, found True"),
            ("[train]\nlr = true", r"train\.lr: expected a number, found True"),
            ('resume = "yes"', r"resume: expected true or false, found 'yes'"),
            ("train = 3", r"train: expected a table of settings, found 3"),
            ("[data]\ntrain = 3", r"data\.train: expected a string, found 3"),
            ('[data]\nlabels = "O"', r"data\.labels: expected a list of strings, found 'O'"),
            ("[data]\nlabels = [0]", r"data\.labels: expected a list of strings, found \[0\]"),
            ('[model]\nkind = "lstm"', r"model\.kind: found 'lstm'; perhaps bilstm\?"),
            ("[train", r"expected TOML, found "),
        ],
    )
    def test_a_mistake_names_the_file_the_setting_and_what_it_should_be(self, text, message, toml):
        path = toml(text)
        with pytest.raises(ConfigError, match=f"^{path}: {message}"):
            config.load_toml(Config, path)

    def test_a_setting_that_a_file_has_under_both_spellings_is_named(self, toml):
        path = toml("[train]\nmax-steps = 1\nmax_steps = 2\n")
        with pytest.raises(ConfigError, match=f"^{path}: train.max-steps: found twice"):
            config.load_toml(Config, path)

    def test_a_whole_number_too_large_for_a_float_is_an_error(self, toml):
        path = toml(f"[train]\nlr = {10**400}\n")
        with pytest.raises(ConfigError, match=rf"^{path}: train\.lr: expected a number"):
            config.load_toml(Config, path)

    @pytest.mark.parametrize("argv", [["--config", ""], ["--config="]])
    def test_an_empty_name_of_a_file_is_an_error(self, argv):
        with pytest.raises(ConfigError, match=r"^--config: expected a TOML file"):
            config.parse(Config, argv, prog="train")

    def test_a_file_that_is_not_utf8_is_named(self, tmp_path):
        path = tmp_path / "a.toml"
        path.write_bytes(b'run = "\xff"')
        with pytest.raises(ConfigError, match=f"^{path}: expected TOML, found .*0xff"):
            config.load_toml(Config, path)

    def test_a_file_that_is_missing_is_named(self, tmp_path):
        path = tmp_path / "none.toml"
        with pytest.raises(ConfigError, match=f"^{path}: expected a TOML file, found No such file"):
            config.parse(Config, ["--config", str(path)], prog="train")


class TestRead:
    def test_what_is_not_given_stays_as_the_training_had_it(self):
        trained = DataConfig(train=Path("a"), encoding="latin-1", tag_column="3", labels=("O",))
        assert ReadConfig().over(trained) == trained
        given = ReadConfig(format="conllu", tag_column="upos")
        expected = dataclasses.replace(trained, format="conllu", tag_column="upos")
        assert given.over(trained) == expected

    @pytest.mark.parametrize("command", [evaluate.EvaluateConfig, predict.PredictConfig])
    def test_evaluating_and_predicting_take_the_flags_of_reading(self, command):
        argv = ["run", "file", "--data.format", "conll", "--data.tag-column=3"]
        parsed = config.parse(command, argv, prog="evaluate")
        assert parsed.data == ReadConfig(format="conll", tag_column="3")


class TestDict:
    @pytest.mark.parametrize(
        "settings",
        [
            Config(),
            Config(
                data=DataConfig(train=Path("a"), labels=("O", "B-X"), encoding="latin-1"),
                model=ModelConfig(kind="transformer", dropout=0.0),
                train=TrainConfig(lr=1e-3, class_weights=("O=0.5",)),
                run=Path("r"),
                resume=True,
            ),
        ],
    )
    def test_settings_written_as_json_come_back(self, settings):
        written = json.loads(json.dumps(config.to_dict(settings)))
        assert config.from_dict(Config, written) == settings

    def test_a_message_begins_with_where_the_settings_came_from(self):
        with pytest.raises(ConfigError, match=r"^run\.json: model\.widht: .* model\.width\?"):
            config.from_dict(Config, {"model": {"widht": 3}}, source="run.json: ")


class TestRanges:
    @pytest.mark.parametrize(
        ("flag", "value"),
        [
            ("--data.shapes", "0"),
            ("--data.row-multiple", "0"),
            ("--encode.min-count", "0"),
            ("--encode.max-words", "-1"),
            ("--model.width", "0"),
            ("--model.feed-forward", "0"),
            ("--model.dropout", "1"),
            ("--model.dropout", "nan"),
            ("--train.epochs", "0"),
            ("--train.max-steps", "-1"),
            ("--train.seed", "-1"),
            ("--train.lr", "-0.1"),
            ("--train.lr", "inf"),
            ("--train.lr", "nan"),
            ("--train.batch-tokens", "0"),
            ("--train.accumulate", "0"),
            ("--train.warmup", "1.5"),
            ("--train.clip-norm", "-1"),
            ("--train.label-smoothing", "1.01"),
            ("--train.log-steps", "0"),
            ("--train.lr", "1e+39"),  # infinite in float32
        ],
    )
    def test_a_value_out_of_range_is_an_error_naming_the_flag(self, flag, value):
        with pytest.raises(ConfigError, match=f"^{flag[2:]}: expected .* found {re.escape(value)}"):
            config.parse(Config, [flag, value], prog="train")

    @pytest.mark.parametrize(
        ("flag", "highest"),
        [
            ("--train.seed", 2**32 - 1),  # of more, jax would take the last 32 bits
            ("--train.epochs", 2**31 - 1),
            ("--train.batch-tokens", 2**26),
            ("--data.row-multiple", 2**16),
            ("--model.width", 2**16),
        ],
    )
    def test_a_number_that_is_too_large_is_an_error_naming_the_limit(self, flag, highest):
        config.parse(Config, [flag, str(highest)], prog="train")
        message = f"^{flag[2:]}: expected .* to {highest:,}, found {highest + 1:,}"
        with pytest.raises(ConfigError, match=message):
            config.parse(Config, [flag, str(highest + 1)], prog="train")

    def test_a_value_out_of_range_in_a_file_is_an_error_naming_the_file(self, toml):
        path = toml("[train]\nepochs = 0\n")
        with pytest.raises(ConfigError, match=rf"^{path}: train\.epochs: expected .* found 0$"):
            config.load_toml(Config, path)

    @pytest.mark.parametrize(
        ("flag", "value"),
        [("--train.seed", str(2**32 - 1)), ("--train.warmup", "1"), ("--train.lr", "0")],
    )
    def test_the_last_value_of_a_range_is_in_it(self, flag, value):
        config.parse(Config, [flag, value], prog="train")


class TestRunCommand:
    def run(self, monkeypatch, main) -> int:
        monkeypatch.setattr(sys, "argv", ["command", "argument"])
        with pytest.raises(SystemExit) as exit_:
            config.run_command(main)
        return exit_.value.code

    def test_a_command_gets_its_arguments_and_exits_with_0(self, monkeypatch):
        seen = []
        assert self.run(monkeypatch, seen.append) == 0
        assert seen == [["argument"]]

    def test_a_mistake_of_the_user_is_one_line_and_exit_status_2(self, monkeypatch, capsys):
        def main(argv):
            raise config.InputError("what is wrong; what to do")

        assert self.run(monkeypatch, main) == 2
        assert capsys.readouterr() == ("", "error: what is wrong; what to do\n")

    def test_a_system_that_refuses_is_one_line_and_exit_status_2(self):
        program = "from jaxtag import config\nconfig.run_command(lambda argv: print('a' * 99))\n"
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert (done.returncode, done.stderr) == (2, "error: output: No space left on device\n")

    def test_an_interrupt_is_exit_status_130_without_a_traceback(self, monkeypatch, capsys):
        def main(argv):
            raise KeyboardInterrupt

        assert self.run(monkeypatch, main) == 130
        assert capsys.readouterr() == ("", "interrupted\n")

    def test_a_reader_that_leaves_ends_the_command_without_a_traceback(self):
        program = (
            "from jaxtag import config\n"
            "def main(argv):\n"
            "    for _ in range(100_000): print('a line')\n"
            "config.run_command(main)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as running:
            running.stdout.readline()
            running.stdout.close()
            assert running.stderr.read() == b""
        assert running.returncode == 141
