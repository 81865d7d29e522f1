"""``autotune doctor``: its findings, its document, its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from autotune import registry
from autotune.cli.main import main
from autotune.knobs import known_bad as table
from autotune.knobs.known_bad import KnownBad
from autotune.search import doctor, doctor_machine, packages
from autotune.search.devices import Device, Devices

GPU = Devices(found=(Device(name="H200", memory_bytes=1),) * 2)
NONE = Devices(found=())


@pytest.fixture
def unprobed(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Findings of a healthy machine instead of the seconds of importing everything."""
    found: dict[str, dict[str, Any]] = {"torch": {"devices": []}}
    found |= {f"backend {name}": {"skipped": []} for name in registry.names("backends")}
    for name in registry.names("models"):
        found[f"bound {name}"] = {"bound": {"attention": "a.b"}}
        found[f"family {name}"] = {"gradient": True}
    monkeypatch.setattr(doctor, "probe", lambda packages, devices: found)
    return found


def state_of(name: str, runs: Path) -> tuple[str, str]:
    (check,) = (check for check in doctor.examine(runs) if check.name == name)
    return check.state, check.text


@pytest.mark.slow
def test_the_real_machine_and_nothing_heavy_in_the_command(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autotune.cli.main import main\n"
        f"code = main(['doctor', '--json', '--runs', {str(tmp_path / 'runs')!r}])\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'optuna', 'ray'} & set(sys.modules)\n"
        "assert not heavy, heavy\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    made = json.loads(done.stdout)
    assert (made["schema_version"], made["verdict"], made["failed"]) == (1, "ok", [])
    checks = {check["name"]: check for check in made["checks"]}
    assert len(checks) == len(made["checks"])
    for name in registry.names("backends"):
        assert checks[f"backend {name}"]["data"] == {"usable": True}
    bound = checks["model qwen3"]["data"]["bound"]
    assert bound["attention"] == "transformers.integrations.sdpa_attention.sdpa_attention_forward"
    assert checks["model qwen3"]["state"] == "ok"
    assert checks["packages"]["data"]["torch"]
    assert not (tmp_path / "runs").exists()


def test_a_file_of_a_librarys_name_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise RuntimeError('shadow')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor.registry, "names", lambda kind: ())
    found = doctor.probe((), NONE)
    assert found["torch"].get("error") is None
    assert found["torch"]["version"]


def test_the_words_and_the_exit_code(
    tmp_path: Path, unprobed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "A search can run here." in out
    assert "model qwen3: forward and backward work; attention: a.b" in out
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--runs", str(tmp_path / "file")]) == 1
    out = capsys.readouterr().out
    assert "failed  runs folder: " in out
    assert "1 failed: runs folder" in out
    assert main(["doctor", "--json", "--runs", str(tmp_path / "file")]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == ["runs folder"]


def test_a_backend_that_cannot_be_imported_is_a_warning_and_none_is_a_failure(
    tmp_path: Path, unprobed: dict[str, Any]
) -> None:
    unprobed["backend zero3"] = {"error": "ModuleNotFoundError: No module named 'deepspeed'"}
    state, text = state_of("backend zero3", tmp_path)
    assert state == "warning"
    assert "No module named 'deepspeed'" in text
    assert not [c for c in doctor.examine(tmp_path) if c.state == "failed"]
    for name in registry.names("backends"):
        unprobed[f"backend {name}"] = {"error": "ImportError: no"}
    assert state_of("backends", tmp_path)[0] == "failed"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_a_folder_that_takes_no_files_fails_for_root_too(
    tmp_path: Path, unprobed: dict[str, Any]
) -> None:
    """Rights say yes to root everywhere: only a file that is really made tells."""
    state, text = state_of("runs folder", Path("/proc/x"))
    assert state == "failed"
    assert "/proc/x cannot be written" in text
    assert state_of("runs folder", tmp_path / "runs")[0] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_known_bad_version_fails(
    tmp_path: Path, unprobed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = packages.public_version("torch")
    assert version is not None
    bad = [
        KnownBad(backend=backend, package="torch", version=version, reason="it is wrong")
        for backend in ("zero3", "deepspeed")
    ]
    monkeypatch.setattr(packages, "KNOWN_BAD", (*table.KNOWN_BAD, *bad))
    checks = doctor.examine(tmp_path)
    assert len({check.name for check in checks}) == len(checks)
    (found,) = (check for check in checks if check.state == "failed")
    assert found.name == "known-bad torch"
    assert set(found.text.split(":")[0].split(" with ")[1].split(", ")) == {"zero3", "deepspeed"}
    assert found.hint == "pip install --upgrade torch"
    assert state_of("backend zero3", tmp_path)[0] == "warning"


def test_what_is_missing_comes_with_a_hint(
    tmp_path: Path, unprobed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unprobed["backend zero3"] = {"error": "ModuleNotFoundError: No module named 'deepspeed.ops'"}
    unprobed["package fla"] = {"error": "ImportError: undefined symbol"}
    unprobed["torch"] = {"error": "OSError: libcudart"}
    real = doctor.public_version
    with_fla = {"flash-linear-attention": "0.4"}
    monkeypatch.setattr(doctor, "public_version", lambda name: with_fla.get(name) or real(name))
    checks = {check.name: check for check in doctor.examine(tmp_path)}
    assert checks["backend zero3"].hint == "pip install deepspeed"
    assert "fits this torch" in str(checks["kernels flash-linear-attention"].hint)
    assert "import torch" in str(checks["devices"].hint)
    without = {"torch": None}
    monkeypatch.setattr(doctor, "public_version", lambda name: without.get(name, real(name)))
    assert state_of("backend ddp", tmp_path) == (
        "warning",
        "does not run here: torch is not installed",
    )


def test_a_model_without_a_gradient_fails_and_names_its_kernels(
    tmp_path: Path, unprobed: dict[str, Any]
) -> None:
    unprobed["family qwen3"] = {"gradient": False}
    state, text = state_of("model qwen3", tmp_path)
    assert state == "failed"
    assert "a.b" in text


def test_devices_that_torch_does_not_see_fail(
    tmp_path: Path, unprobed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "visible_devices", lambda: GPU)
    state, text = state_of("devices", tmp_path)
    assert (state, text) == ("failed", "2 × H200 by the driver, but torch can use 0")
    unprobed["torch"] = {"devices": [{"capability": [9, 0]}] * 2, "device_step": True}
    assert state_of("devices", tmp_path) == ("ok", "2 × H200")
    unprobed["torch"] = {"error": "OSError: libcudart"}
    assert state_of("devices", tmp_path)[0] == "failed"


@pytest.mark.parametrize(
    ("triton", "installed", "state"),
    [
        ("3.6.0", {"fla": "0.4"}, "warning"),
        ("3.3.1", {"fla": "0.4"}, "ok"),
        ("3.7.1", {"fla": "0.4"}, "ok"),
        ("3.6.0", {"fla": "0.4", "tilelang": "0.1"}, "ok"),
    ],
)
def test_flash_linear_attention_on_hopper(
    triton: str, installed: dict[str, str], state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "public_version", lambda package: triton)
    findings = {"torch": {"devices": [{"capability": [9, 0]}]}}
    assert doctor._fla(installed, findings).state == state


def test_a_probe_that_ends_early_leaves_what_it_found() -> None:
    text = (
        "a library prints\n"
        '@autotune-doctor {"subject": "torch", "devices": []}\n'
        '@autotune-doctor {"subject": "backend zero3", "error": "ImportError: x"}\n'
        "Segmentation fault\n"
    )
    found = doctor.read_findings(text)
    assert found == {"torch": {"devices": []}, "backend zero3": {"error": "ImportError: x"}}
    found["ended"] = {"error": "it ended"}
    assert doctor._error(found, "torch") is None
    assert doctor._error(found, "backend zero3") == "ImportError: x"
    assert doctor._error(found, "backend fsdp2") == "it ended"


def test_multicast_variables_are_shown_and_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.delenv("NVSHMEM_DISABLE_NVLS", raising=False)
    monkeypatch.setenv("RANK", "3")
    found = {check.name: check for check in doctor_machine.checks(tmp_path, NONE)}
    assert found["NVLink multicast"].data["NCCL_NVLS_ENABLE"] == "0"
    assert found["NVLink multicast"].data["NVSHMEM_DISABLE_NVLS"] is None
    assert found["other launchers"].state == "note"
    assert "RANK" in found["other launchers"].data["names"]
    assert list(tmp_path.iterdir()) == []


def test_little_shared_memory_matters_with_several_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")(2**26, 0, 2**26)
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda path: usage)
    assert doctor_machine.shared_memory(tmp_path, GPU).state == "warning"
    assert doctor_machine.shared_memory(tmp_path, NONE).state == "ok"
