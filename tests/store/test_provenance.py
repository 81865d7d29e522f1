from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from autotune.contract import jsonfile
from autotune.contract.plan import Topology
from autotune.store.provenance import (
    environment,
    environment_fingerprint,
    parse_accelerators,
    variables,
)

CPU = Topology(processes=2, device="cpu", devices_per_node=2)


def test_versions_are_those_installed() -> None:
    found = environment(CPU)
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["packages"]["deepspeed"] == metadata.version("deepspeed")
    assert found["gpus"] == []
    jsonfile.canonical(found)


def test_only_what_may_change_the_time_is_in_the_fingerprint() -> None:
    found = environment(CPU)
    same = found | {"hostname": "another", "git": {"commit": "0", "dirty": True}, "autotune": "9"}
    assert environment_fingerprint(same) == environment_fingerprint(found)
    for change in (
        {"cpu": "another"},
        {"cpu_cores": 999},
        {"driver": "1.2"},
        {"packages": found["packages"] | {"torch": "9.9"}},
    ):
        assert environment_fingerprint(found | change) != environment_fingerprint(found)


def test_the_sites_variables_are_recorded_and_no_others() -> None:
    site = {"NCCL_NVLS_ENABLE": "0", "NCCL_BUFFSIZE": "1", "HF_TOKEN": "secret", "HOME": "/h"}
    assert variables(site) == {"NCCL_NVLS_ENABLE": "0", "NCCL_BUFFSIZE": "1"}


def test_a_site_that_sets_another_variable_has_other_times_on_a_device() -> None:
    found = environment(CPU) | {"device": "cuda", "variables": {}}
    other = found | {"variables": {"NCCL_BUFFSIZE": "8388608"}}
    assert environment_fingerprint(other) != environment_fingerprint(found)
    # No study chooses among them, and collectives by NVLink multicast take another time.
    site = found | {"variables": {"NCCL_NVLS_ENABLE": "0"}}
    assert environment_fingerprint(site) != environment_fingerprint(found)
    assert environment_fingerprint(site | {"device": "cpu"}) == environment_fingerprint(
        found | {"device": "cpu"}
    )
    without = {name: value for name, value in found.items() if name != "variables"}
    assert environment_fingerprint(without) == environment_fingerprint(found)


def test_only_visible_accelerators_are_listed() -> None:
    rows = [
        ["0", "GPU-aaaa", "NVIDIA H200", "143771", "570.1"],
        ["1", "GPU-bbbb", "NVIDIA H200", "143771", "570.1"],
    ]
    assert len(parse_accelerators(rows, None)["gpus"]) == 2
    expected = {"gpus": [{"name": "NVIDIA H200", "memory_mib": 143771}], "driver": "570.1"}
    assert parse_accelerators(rows, "1") == expected
    assert parse_accelerators(rows, "GPU-aa") == expected
    assert parse_accelerators(rows, "") == {"gpus": [], "driver": None}
    assert parse_accelerators([["no devices were found"]], None)["gpus"] == []


def test_the_store_loads_no_heavy_library() -> None:
    code = (
        "import sys, autotune.store.recorder, autotune.store.provenance, autotune.store.reading\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'optuna', 'ray', 'alembic'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
