"""What is in the packages, and that it runs from where they are put."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from autotune import __version__

ROOT = Path(__file__).resolve().parent.parent
SHIPPED_SPACES = {
    "zero3.yaml", "zero.yaml", "fsdp2.yaml", "ddp.yaml", "both.yaml", "packing.yaml",
    "qwen3-gpu.yaml", "qwen3_5-gpu.yaml", "zero3-gpu.yaml",
}  # fmt: skip


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The wheel and the sdist of this checkout, built without network."""
    folder = tmp_path_factory.mktemp("dist")
    code = (
        "import sys, os\n"
        "from hatchling import build\n"
        "out = sys.argv[1]\n"
        "print(build.build_wheel(out)); print(build.build_sdist(out))\n"
        "print(build.build_editable(os.path.join(out, 'editable')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, folder], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    wheel, sdist, editable = done.stdout.split()
    return folder / wheel, folder / sdist, folder / "editable" / editable


def python(*arguments, folder, path):
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )


def test_the_wheel_has_all_modules_and_data(packages):
    names = set(zipfile.ZipFile(packages[0]).namelist())
    sources = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "autotune").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert sources <= names
    assert "autotune/py.typed" in names
    assert {f"autotune/_search_spaces/{name}" for name in SHIPPED_SPACES} <= names


def test_the_wheel_has_nothing_else(packages):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(packages[0]).namelist()}
    assert tops == {"autotune", f"autotune-{__version__}.dist-info"}


def test_the_wheel_carries_the_licence_and_the_program(packages):
    archive = zipfile.ZipFile(packages[0])
    info = f"autotune-{__version__}.dist-info"
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    assert "autotune = autotune.cli.main:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_the_sdist_can_be_tested_and_documented(packages):
    with tarfile.open(packages[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md", "mkdocs.yml",
        "docs/index.md", "tests/conftest.py", "autotune/py.typed",
    } <= names  # fmt: skip
    assert {f"search_spaces/{name}" for name in SHIPPED_SPACES} <= names
    assert not any(name.startswith(("runs/", ".venv", ".git/")) for name in names)


def test_an_unpacked_wheel_runs_and_finds_the_shipped_spaces(packages, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(packages[0]).extractall(site)
    done = python("-m", "autotune", "--version", folder=empty, path=site)
    assert (done.returncode, done.stdout) == (0, f"autotune {__version__}\n")
    code = (
        "from autotune.space.loader import find_space\n"
        "for name in ('zero3.yaml', 'fsdp2.yaml'): print(find_space(name))"
    )
    done = python("-c", code, folder=empty, path=site)
    assert done.returncode == 0, done.stderr
    found = [Path(line) for line in done.stdout.split()]
    assert [path.parent for path in found] == [site / "autotune" / "_search_spaces"] * 2


@pytest.mark.parametrize("kind", ["plain", "editable"])
def test_a_checkout_runs_and_finds_the_shipped_spaces(kind, packages, tmp_path):
    """A plain checkout on PYTHONPATH has no installed metadata; an editable install is a path
    file beside its metadata."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    site.mkdir()
    if kind == "editable":
        zipfile.ZipFile(packages[2]).extractall(site)
        start = f"import site; site.addsitedir({str(site)!r})\n"
        path = ""
    else:
        start, path = "", ROOT
    code = start + (
        "import autotune, sys\n"
        "from autotune.cli.main import main\n"
        "from autotune.space.loader import find_space\n"
        "print(autotune.__file__)\n"
        "for name in ('zero3.yaml', 'fsdp2.yaml'): print(find_space(name))\n"
        "sys.exit(main(['--version']))"
    )
    done = python("-c", code, folder=empty, path=path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(ROOT / "autotune" / "__init__.py")
    assert [Path(line) for line in lines[1:3]] == [
        ROOT / "search_spaces" / "zero3.yaml",
        ROOT / "search_spaces" / "fsdp2.yaml",
    ]
    assert lines[3] == f"autotune {__version__}"


def test_the_dev_extra_holds_every_other_extra():
    """Tests and CI need one extra only."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name in extras.keys() - {"dev"}:
        assert set(extras[name]) <= set(extras["dev"])


def test_the_constraint_is_one_pin_of_torch():
    assert (ROOT / "constraints.txt").read_text() == "torch==2.13.0\n"


def test_the_readmes_commands_do_all_the_set_up():
    commands = [
        line
        for line in (ROOT / "README.md").read_text().splitlines()
        if line.startswith("python3 ")
    ]
    assert len(commands) == 2
    for command in commands:
        assert command.startswith(
            "python3 -m venv .venv && .venv/bin/python -m pip install -c constraints.txt -e "
        )
    assert commands[0].endswith(".venv/bin/autotune search --space zero3.yaml --trials 8")
    assert commands[1].endswith(".venv/bin/python -m pytest -n 2 --dist loadfile")
