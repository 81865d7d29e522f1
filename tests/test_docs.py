"""The documentation's generated parts and links. ``mkdocs build --strict`` runs in CI."""

import importlib.util
import re
from pathlib import Path

import pytest

from autotune.knobs import ddp, fsdp2, workload, zero3

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs/_hooks/generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("owner", [workload, zero3, fsdp2, ddp])
def test_every_knob_has_a_row_of_seven_cells(hook, owner):
    name = owner.__name__.rpartition(".")[2]
    rows = hook.on_page_markdown(f"before\n<!-- knobs: {name} -->\nafter").splitlines()[1:-1]
    assert len(rows) == len(owner.KNOBS) + 2
    for row, knob in zip(rows[2:], owner.KNOBS, strict=True):
        assert row.startswith(f"| `{knob.name}` | {knob.type} | ")
        assert len(re.findall(r"(?<!\\)\|", row)) == 8


def test_defaults_are_shown_as_a_space_file_writes_them(hook):
    assert hook.shown(500_000_000) == "500_000_000"
    assert [hook.shown(value) for value in (None, True, False, "padded")] == [
        "unset", "true", "false", "padded",
    ]  # fmt: skip


def test_a_marker_that_cannot_be_filled_ends_the_build(hook):
    with pytest.raises(ModuleNotFoundError):
        hook.on_page_markdown("<!-- knobs: nobody -->")


def test_the_help_of_the_program_is_shown(hook):
    assert "Usage: autotune [OPTIONS] COMMAND" in hook.on_page_markdown("<!-- help: -->")


def test_every_page_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text())
    assert len(links) >= 10
    assert [link for link in links if not (ROOT / link).exists()] == []
