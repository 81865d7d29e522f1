"""The documentation's generated parts and links. ``mkdocs build --strict`` runs in CI."""

import importlib.util
import re
from pathlib import Path

import pytest
from study_factory import StudyBuilder, failed, make_study, measured

from autotune import registry
from autotune.contract.plan import Topology
from autotune.exporters.base import ExportResult
from autotune.exporters.choosing import choose
from autotune.exporters.provenance import provenance
from autotune.knobs import ddp, deepspeed, fsdp2, kernels, workload, zero3
from autotune.knobs import environment as variables
from autotune.models.presets import PRESETS
from autotune.report import document
from autotune.report.progress import progress
from autotune.space.keys import KEYS
from autotune.space.loader import parse_space
from autotune.store.importer import read_study
from autotune.store.provenance import environment

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("generated", ROOT / "docs/_hooks/generated.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("owner", [workload, zero3, deepspeed, fsdp2, ddp])
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


def field_names(document):
    """Keys at any depth; those of open mappings (settings, packages, layer types) are values."""
    open_mappings = {"params", "config", "packages", "read_back", "implementations", "unverified"}
    if isinstance(document, list):
        return set().union(*map(field_names, document)) if document else set()
    if not isinstance(document, dict):
        return set()
    below = [field_names(value) for key, value in document.items() if key not in open_mappings]
    return set(document).union(*below)


def test_the_reference_names_every_field_of_the_report(tmp_path):
    samples = {"lengths": [8], "dataset_samples": 100}
    study = StudyBuilder(tmp_path, make_study(workload={"samples": samples, "global_batch": 4}))
    study.trial(measured(0.8))
    best = study.trial(measured(0.5))
    study.trial(failed("crash", "why"))
    study.again(best, measured(0.5))
    study.verdict("faster", best, ratio=1.6, low=1.5, high=1.7)
    contents = read_study(study.folder)
    report = document.build(contents)
    fields = field_names(report) | field_names(environment(report_topology()))
    page = (ROOT / "docs/reference/report-json.md").read_text()
    tables = page[page.index("## The document") :]
    assert {"median", "hours", "round", "cpu_cores", "compile_s"} <= fields
    assert sorted(name for name in fields if f"`{name}`" not in tables) == []
    others = page[page.index("## Other documents") :]
    status = progress(contents, report)
    assert sorted(name for name in status if f"`{name}`" not in tables) == []
    assert "num_remeasurements" in others


def report_topology():
    return Topology(processes=2, device="cpu", devices_per_node=2)


def test_the_reference_names_every_field_of_an_exports_companion(tmp_path):
    study = StudyBuilder(tmp_path)
    study.trial(measured(0.8))
    contents = read_study(study.folder)
    request = choose(contents, document.build(contents), "ds.json")
    fields = provenance(request, ExportResult(files={"ds.json": "{}"}), format_name="f", at=1.0)
    page = (ROOT / "docs/how-to/export.md").read_text()
    assert sorted(name for name in fields if f"`{name}`" not in page) == []


def test_the_example_of_an_own_script_loads():
    page = (ROOT / "docs/how-to/own-script.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    space = parse_space(text, file="own.yaml").on(
        Topology(processes=8, device="cuda", devices_per_node=8)
    )
    assert space.baseline_config().values["command.workers"] == 2
    names = re.findall(r"^\| `\{([a-z_]+)[:}]", page, re.MULTILINE)
    assert names == ["deepspeed_json", "trial_dir", "processes", "param"]


def test_the_space_files_reference_names_every_key():
    page = (ROOT / "docs/reference/space-file.md").read_text()
    keys = {key for path, names in KEYS.items() for key in names if path != "workload.precision"}
    assert (
        sorted(key for key in keys if key not in re.findall(r"[\w.]+", page.replace(".", " ")))
        == []
    )


def test_the_reference_names_every_preset_family_and_backend():
    models = (ROOT / "docs/reference/models-and-data.md").read_text()
    space = (ROOT / "docs/reference/space-file.md").read_text()
    assert [name for name in PRESETS if f"`{name}`" not in models or f"`{name}`" not in space] == []
    assert [name for name in registry.names("models") if f"| `{name}` |" not in models] == []
    assert [name for name in registry.names("backends") if f"`{name}`" not in space] == []


def test_every_shipped_space_file_is_named_in_the_reference_and_says_how_it_is_started():
    space = (ROOT / "docs/reference/space-file.md").read_text()
    for file in (ROOT / "search_spaces").glob("*.yaml"):
        assert f"`{file.stem}`" in space or f"`{file.name}`" in space
        assert f"autotune search --space {file.name}" in file.read_text()


def test_the_space_files_reference_names_every_knob():
    page = (ROOT / "docs/reference/space-file.md").read_text()
    owners = (workload, kernels, deepspeed, fsdp2, ddp, variables)
    knobs = [knob for owner in owners for knob in owner.KNOBS]
    live = [knob.name for knob in knobs if knob.numerics != "work" and knob.dead_when != "true"]
    assert len(live) > 15
    assert [name for name in live if f"`{name}`" not in page and f".{name}`" not in page] == []
