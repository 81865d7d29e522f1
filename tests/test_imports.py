"""The import rules of the design: who may import whom, and what stays unloaded."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from autotune import registry

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "autotune"
HEAVY = ("torch", "transformers", "deepspeed", "optuna", "ray")
LIGHT_PACKAGES = (
    "analysis", "backends", "cli", "contract", "data", "exporters", "knobs", "launchers",
    "report", "space", "store",
)  # fmt: skip
RUN_IN_RANKS = {
    "autotune.data.packing", "autotune.data.stream", "autotune.data.tokenise",
    "autotune.data.tokens",
    "autotune.backends.ddp_engine", "autotune.backends.deepspeed_engine",
    "autotune.backends.deepspeed_flattening", "autotune.backends.filling",
    "autotune.backends.fsdp2_engine",
    "autotune.backends.numberformats",
}  # fmt: skip
"""Modules of light packages whose whole purpose is to use torch; no other may reach them."""
NEEDED_BY_THE_COORDINATOR = ("autotune.models.presets", "autotune.models.resolve")


def loaded_after(code: str, *, folder: Path) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after ``code``."""
    script = (
        f"{code}\nimport sys, json\n"
        "json.dump(sorted({m.partition('.')[0] for m in sys.modules}), sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def modules_of(package: str) -> list[str]:
    files = sorted((PACKAGE / package).rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    return [name.removesuffix(".__init__") for name in names]


def test_importing_the_package_loads_nothing_heavy(tmp_path):
    loaded = loaded_after("import autotune", folder=tmp_path)
    assert "autotune" in loaded
    assert not loaded & {*HEAVY, "typer", "rich", "sqlalchemy", "alembic", "yaml"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["no-such-command"], []])
def test_the_programs_own_answers_load_nothing_heavy(arguments, tmp_path):
    code = f"from autotune.cli.main import main; main({arguments!r})"
    loaded = loaded_after(code, folder=tmp_path)
    assert "typer" in loaded
    assert not loaded & {*HEAVY, "rich", "sqlalchemy", "alembic", "yaml"}


def importing(names):
    return "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names)


@pytest.mark.parametrize("package", LIGHT_PACKAGES)
def test_a_light_package_loads_no_heavy_library(package, tmp_path):
    names = [
        name
        for name in modules_of(package)
        if name not in RUN_IN_RANKS and ".migrations" not in name  # those run inside Alembic
    ]
    assert not loaded_after(importing(names), folder=tmp_path) & set(HEAVY)


def test_what_the_coordinator_needs_of_the_replaceable_parts_is_light(tmp_path):
    """It validates, renders and counts FLOPs without an engine."""
    registered = [
        value.partition(":")[0] for kind in registry.BUILTIN.values() for value in kind.values()
    ]
    code = importing([*registered, *NEEDED_BY_THE_COORDINATOR])
    assert not loaded_after(code, folder=tmp_path) & set(HEAVY)


@pytest.mark.parametrize("package", ["contract", "analysis", "knobs"])
def test_what_training_processes_share_needs_the_standard_library_only(package):
    for file in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            else:
                continue
            for name in names:
                top = name.partition(".")[0]
                assert top in {*sys.stdlib_module_names, "autotune"}, f"{file}: {name}"


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / "lint-imports"
    return subprocess.run(
        [tool, "--no-cache", "--config", folder / "pyproject.toml"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


def test_the_import_contracts_hold():
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Contracts: \d+ kept, 0 broken", done.stdout)


def test_a_forbidden_import_breaks_its_contract(tmp_path):
    """Also when it hides in a function."""
    shutil.copytree(PACKAGE, tmp_path / "autotune", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "autotune/analysis/culprit.py").write_text("def f():\n    import autotune.store\n")
    (tmp_path / "autotune/worker/culprit.py").write_text("import optuna\n")
    done = lint(tmp_path)
    assert done.returncode == 1
    assert re.search(r"analysis imports .* BROKEN", done.stdout)
    assert re.search(r"nothing that a training process loads .* BROKEN", done.stdout)


def test_every_package_has_a_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    with_contract = {contract["id"] for contract in settings["contracts"]}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages <= with_contract | {"worker"}
    assert {"worker", "worker-processes", "nobody-imports-worker"} <= with_contract
