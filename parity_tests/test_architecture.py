"""The order of the modules, what they may import, and what importing the package costs."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
import tomllib
from pathlib import Path

import conftest
import pytest
from claims import CLAIMS

import jaxtag

PACKAGE = Path(jaxtag.__file__).parent
REFERENCE = PACKAGE.parent / "torch_ref"
# A module imports only modules that stand before it here.
ORDER = [
    "config",
    "files",
    "labels",
    "corpus",
    "demo",
    "encode",
    "plan",
    "data",
    "batch",
    "device",
    "precision",
    "model",
    "losses",
    "loss_scale",
    "optim",
    "metrics",
    "step",
    "diagnosis",
    "memory",
    "checkpoint",
    "run",
    "evaluation",
    "tagger",
    "progress",
    "session",
    "loop",
    "train",
    "evaluate",
    "predict",
    "diagnose",
]
# Whatever runs code that stands in a file.
UNSAFE = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    """The module that a file belongs to; a package is one."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Dotted names of all that a file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def top_levels(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path)}


def test_every_module_has_its_place_in_the_order():
    assert {module_of(path) for path in sources()} - {"__init__", "__main__"} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_modules_above_it(name):
    above = {"jaxtag", name, *ORDER[: ORDER.index(name)]}
    for path in sources():
        if module_of(path) == name:
            own = {n.split(".")[1] for n in imported(path) if n.startswith("jaxtag.")}
            assert own & set(ORDER) <= above, path


@pytest.mark.parametrize("name", ["config", "labels", "corpus", "demo", "encode", "plan", "batch"])
def test_the_modules_before_the_device_do_not_import_jax(name):
    for path in sources():
        if module_of(path) == name:
            assert not top_levels(path) & {"jax", "jaxlib", "flax", "optax"}, path


def test_config_imports_neither_jax_nor_numpy_nor_jaxtyping():
    for path in (PACKAGE / "config").glob("*.py"):
        assert not top_levels(path) & {"jax", "numpy", "jaxtyping"}, path


def test_torch_is_imported_nowhere():
    assert [path for path in sources() if "torch" in top_levels(path)] == []


def test_the_reference_shares_files_and_ids_with_jaxtag_and_nothing_that_computes():
    shared = {"config", "corpus", "demo", "encode", "labels"}
    for path in REFERENCE.rglob("*.py"):
        own = {name.split(".")[1] for name in imported(path) if name.startswith("jaxtag.")}
        assert own <= shared, path


def test_the_tests_that_need_torch_are_those_left_out_without_it():
    for path in Path(__file__).parent.glob("*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        at_once = ast.Module([n for n in body if isinstance(n, ast.Import | ast.ImportFrom)], [])
        words = set(ast.unparse(at_once).replace(".", " ").split())
        needs = any(word.split("_")[0] == "torch" or word == "weights" for word in words)
        needs |= path.name == "test_mutations.py"  # through the tests that it imports
        left_out = any(fnmatch.fnmatch(path.name, glob) for glob in conftest.NEED_TORCH)
        assert needs == left_out, path


def test_nothing_that_runs_code_from_a_file_is_imported_or_called():
    for path in sources():
        assert not top_levels(path) & UNSAFE, path
        called = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not called & UNSAFE_CALLS, path


def test_importing_the_package_imports_neither_jax_nor_numpy():
    program = (
        "import sys, jaxtag; print(sorted({'jax', 'numpy', 'flax', 'optax'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", ["losses", "loss_scale", "metrics", "plan", "precision"])
def test_a_public_module_is_imported_when_it_is_first_used(name):
    namespace: dict[str, object] = {}
    exec(f"from jaxtag import {name}", namespace)
    assert namespace[name] is sys.modules[f"jaxtag.{name}"]
    assert name in dir(jaxtag)


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'jaxtag' has no attribute 'lossses'"):
        _ = jaxtag.lossses


def test_every_module_with_jaxtyping_annotations_is_checked_in_the_tests():
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))
    options = project["tool"]["pytest"]["ini_options"]["addopts"].split()
    (checked,) = [o.split("=")[1] for o in options if o.startswith("--jaxtyping-packages=")]
    annotated = {
        f"jaxtag.{module_of(path)}" for path in sources() if "jaxtyping" in top_levels(path)
    }
    assert checked.split(",") == [*sorted(annotated), "beartype.beartype"]


def test_the_claims_in_the_readme_are_those_that_the_tests_hold():
    lines = (PACKAGE.parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    written = {row[0]: row[1:3] for row in rows if len(row) == 5 and row[0] in CLAIMS}
    assert written == {
        key: [claim.text, f"{claim.bound:g} {claim.unit}"] for key, claim in CLAIMS.items()
    }
