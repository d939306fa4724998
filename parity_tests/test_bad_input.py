"""Whatever a user gives wrong: one line on stderr that says where, exit status 2, no run left."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import jax
import pytest

from jaxtag import config, diagnose, evaluate, predict, train

pytestmark = pytest.mark.usefixtures("quick_compiles")

GOOD = "Ada\tB-PER\nsaw\tO\n\n"
COMMANDS = {"train": train, "evaluate": evaluate, "predict": predict, "diagnose": diagnose}


@dataclass(frozen=True)
class Mistake:
    """A command line, the files that it finds, and what the message must hold."""

    argv: str
    parts: tuple[str, ...]
    files: dict[str, str | bytes | None] = field(default_factory=dict)
    """Content by name; None makes a directory."""


MISTAKES = {
    "a missing file": Mistake("train --data.train none.conll", ("none.conll:", "no such file")),
    "a missing dev file": Mistake(
        "train --data.train a.conll --data.dev none.conll", ("none.conll:", "no such file")
    ),
    "a directory": Mistake("train --data.train d", ("d:", "a directory"), {"d": None}),
    "an empty file": Mistake("train --data.train e", ("e:", "an empty file"), {"e": ""}),
    "a file of blank lines": Mistake(
        "train --data.train e", ("e:", "nothing but blank lines"), {"e": "\n\n"}
    ),
    "a file without tags": Mistake(
        "train --data.train e", ("e:", "none that looks like tags"), {"e": "Ada\nsaw\n\n"}
    ),
    "a file with no labelled token": Mistake(
        "train --data.train e.jsonl",
        ("e.jsonl:", "a labelled token"),
        {"e.jsonl": '{"tokens": [], "tags": []}\n'},
    ),
    "a line without a tag": Mistake(
        "train --data.train e",
        ("e:2:", "'saw'", "add the missing tag"),
        {"e": "Ada\tO\nsaw\n.\tO\n"},
    ),
    "a tag id that the labels do not name": Mistake(
        "train --data.train e.jsonl --data.labels O B-PER",
        ("e.jsonl:2:", "tag ids from 0 to 1, found 2"),
        {"e.jsonl": '{"tokens": ["a"], "tags": [1]}\n{"tokens": ["a"], "tags": [2]}\n'},
    ),
    "fewer tags than tokens": Mistake(
        "train --data.train e.jsonl",
        ("e.jsonl:1:", "a tag for each of 2 tokens, found 1 tag"),
        {"e.jsonl": '{"tokens": ["a", "b"], "tags": ["O"]}\n'},
    ),
    "a line that is no JSON": Mistake(
        "train --data.train e.jsonl", ("e.jsonl:1:", "invalid JSON"), {"e.jsonl": "{tokens}\n"}
    ),
    "bytes that are no text": Mistake(
        "train --data.train e",
        ("e:2:", "byte 0xe9", "--data.encoding"),
        {"e": b"a\tO\ncaf\xe9\tO\n"},
    ),
    "an unknown encoding": Mistake(
        "train --data.train a.conll --data.encoding utf-9", ("utf-9", "did you mean utf-8")
    ),
    "gzip cut short": Mistake(
        "train --data.train e.gz", ("e.gz:", "gzip data"), {"e.gz": b"\x1f\x8b\x08\x00half"}
    ),
    "a column that the file lacks": Mistake(
        "train --data.train a.conll --data.tag-column 5", ("a.conll:", "--data.tag-column")
    ),
    "dev without train": Mistake("train --data.dev a.conll", ("data.dev:", "--data.train")),
    "a loss scale where none is needed": Mistake(
        "train --data.train a.conll --precision.policy bfloat16 --precision.loss-scale dynamic",
        ("precision.loss-scale:", "bfloat16", "--precision.scale-anyway"),
    ),
    "a width that the heads do not divide": Mistake(
        "train --data.train a.conll --model.kind transformer --model.width 6", ("model.width:",)
    ),
    "an odd width of two directions": Mistake(
        "train --data.train a.conll --model.width 7", ("model.width:", "found 7")
    ),
    "a weight of an unknown label": Mistake(
        "train --data.train a.conll --train.class-weights B-LOC=2",
        ("train.class-weights:", "O B-PER", "'B-LOC=2'"),
    ),
    "a weight that is no number": Mistake(
        "train --data.train a.conll --train.class-weights O=nan",
        ("train.class-weights:", "'O=nan'"),
    ),
    "no epochs": Mistake("train --train.epochs 0", ("train.epochs:", "from 1 to", "found 0")),
    "a settings file with a wrong name": Mistake(
        "train --config s.toml",
        ("s.toml:", "train.epoch:", "perhaps train.epochs?"),
        {"s.toml": "[train]\nepoch = 3\n"},
    ),
    "a settings file that is no TOML": Mistake(
        "train --config s.toml", ("s.toml:", "line 1"), {"s.toml": "[train\n"}
    ),
    "a run directory with other files": Mistake(
        "train --data.train a.conll --run mine --overwrite",
        ("mine:", "expected an empty directory or a jaxtag run"),
        {"mine": None, "mine/thesis.txt": "text"},
    ),
    "a run directory with a run": Mistake(
        "train --data.train a.conll --run old",
        ("old:", "--resume", "--overwrite"),
        {"old": None, "old/.jaxtag-run": ""},
    ),
    "a file as run directory": Mistake("train --run a.conll", ("a.conll:", "found a file")),
    "resuming no run in particular": Mistake("train --resume", ("--resume:", "--run DIRECTORY")),
    "predicting with no run": Mistake("predict none a.conll", ("none:", "found nothing")),
    "evaluating no run": Mistake("evaluate none a.conll", ("none:", "found nothing")),
    "predicting with another directory": Mistake(
        "predict mine a.conll", ("mine:", "no .jaxtag-run"), {"mine": None}
    ),
    "evaluating a run that never began": Mistake(
        "evaluate old a.conll",
        ("old/run.json:", "expected a file of the run"),
        {"old": None, "old/.jaxtag-run": ""},
    ),
    "predicting a missing file": Mistake("predict RUN none", ("none:", "no such file")),
    "predicting an empty file": Mistake("predict RUN e", ("e:", "an empty file"), {"e": ""}),
    "predicting into a directory that is not there": Mistake(
        "predict RUN a.conll --output none/out", ("none/out:", "can be written")
    ),
    "evaluating a missing file": Mistake("evaluate RUN none", ("none:", "no such file")),
    "evaluating a file without tags": Mistake(
        "evaluate RUN e", ("e:", "none that looks like tags"), {"e": "Ada\nsaw\n\n"}
    ),
    "evaluating into a directory that is not there": Mistake(
        "evaluate RUN a.conll --output none/out", ("none/out:", "can be written")
    ),
    "diagnosing a run that never was": Mistake(
        "diagnose --run none", ("none:", "expected a run directory")
    ),
    "diagnosing a run with a training's flags": Mistake(
        "diagnose --run none --model.width 64", ("model:", "beside --run")
    ),
    "diagnosing into a file": Mistake(
        "diagnose --file a.conll --output a.conll", ("output:", "expected a directory", "a.conll")
    ),
    "a loss scale out of range": Mistake(
        "train --data.train a.conll --precision.policy float16 --precision.init-scale 0",
        ("precision.init-scale:", "found 0"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_that_says_where_and_exit_status_2_and_no_run_is_left(
    name, request, tmp_path, monkeypatch, capsys
):
    mistake = MISTAKES[name]
    command, *argv = mistake.argv.split(" ")
    if "RUN" in argv:
        argv[argv.index("RUN")] = str(request.getfixturevalue("trained").run)
    monkeypatch.chdir(tmp_path)
    for file, content in ({"a.conll": GOOD} | mistake.files).items():
        if content is None:
            Path(file).mkdir()
        else:
            Path(file).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", [command, *argv])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_:
        config.run_command(COMMANDS[command].main)
    assert exit_.value.code == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    *others, last = printed.splitlines()
    assert last.startswith("error: ")
    assert not any(line.startswith("error: ") for line in others)
    assert [part for part in mistake.parts if part not in last] == []
    assert sorted(tmp_path.rglob("*")) == before


def test_rows_that_the_devices_do_not_divide_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "local_devices", lambda: [None] * 3)
    message = r"^data\.row-multiple: expected a multiple of the 3 devices, found 8"
    with pytest.raises(config.ConfigError, match=message):
        train.main([])
    assert list(tmp_path.iterdir()) == []
