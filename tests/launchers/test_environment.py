from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from launching import make_plan

from autotune.knobs import environment
from autotune.launchers import environment as env

SITE = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
}


@pytest.mark.parametrize(
    "name",
    [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "ACCELERATE_USE_FSDP",
        "FSDP_VERSION",
        "SLURM_PROCID",
        "SLURM_STEP_ID",
        "SLURM_STEPID",
        "AUTOTUNE_TRIAL",
    ],
)
def test_what_another_launcher_left_is_dropped_and_named(name):
    kept, dropped = env.child_environment({name: "x", "HOME": "/h"}, make_plan(), cores=2)
    assert name not in kept
    assert kept["HOME"] == "/h"
    assert dropped == (name,)


@pytest.mark.parametrize(
    "name", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "RANKING", "HF_TOKEN", "NCCL_DEBUG"]
)
def test_all_else_is_inherited(name):
    kept, dropped = env.child_environment({name: "x"}, make_plan(), cores=2)
    assert kept[name] == "x"
    assert dropped == ()


def test_what_is_installed_beside_the_interpreter_is_found_last():
    """``ninja`` builds extensions, and an environment need not be activated."""
    beside = str(Path(sys.executable).parent)
    ranks, _ = env.child_environment({"PATH": "/a:/b"}, make_plan(), cores=2)
    assert ranks["PATH"] == f"/a:/b:{beside}"
    ranks, _ = env.child_environment({"PATH": f"{beside}:/a"}, make_plan(), cores=2)
    assert ranks["PATH"] == f"{beside}:/a"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_sites_own_settings_are_never_touched(device):
    ranks, dropped = env.child_environment(SITE, make_plan(), cores=2)
    server = env.server_environment(SITE, device=device, package_root=None)
    assert dropped == ()
    for name, value in SITE.items():
        assert ranks[name] == server[name] == value


def test_site_settings_are_not_invented_either():
    ranks, _ = env.child_environment({}, make_plan(), cores=2)
    server = env.server_environment({}, device="cuda", package_root=None)
    assert not set(SITE) & (set(ranks) | set(server))


def test_threads_are_divided_among_ranks_unless_the_user_said_how_many():
    plan = make_plan(processes=2)
    assert env.child_environment({}, plan, cores=9)[0]["OMP_NUM_THREADS"] == "4"
    assert env.child_environment({}, plan, cores=1)[0]["OMP_NUM_THREADS"] == "1"
    mine = {"OMP_NUM_THREADS": "3"}
    assert env.child_environment(mine, plan, cores=9)[0]["OMP_NUM_THREADS"] == "3"


def test_the_plans_variables_win():
    plan = make_plan(environment={"NCCL_BUFFSIZE": "7"})
    assert env.child_environment({"NCCL_BUFFSIZE": "1"}, plan, cores=2)[0]["NCCL_BUFFSIZE"] == "7"


def test_what_a_plan_must_not_find_set_is_taken_away():
    plan = dataclasses.replace(
        make_plan(environment={"NCCL_MAX_CTAS": "8"}), unset=("NCCL_BUFFSIZE",)
    )
    site = {"NCCL_BUFFSIZE": "1", "NCCL_MAX_CTAS": "4", "NCCL_MIN_CTAS": "2"}
    ranks, _ = env.child_environment(site, plan, cores=2)
    assert "NCCL_BUFFSIZE" not in ranks
    assert (ranks["NCCL_MAX_CTAS"], ranks["NCCL_MIN_CTAS"]) == ("8", "2")


@pytest.mark.parametrize("knob", environment.KNOBS, ids=lambda knob: knob.name)
def test_no_tunable_variable_needs_a_server_of_its_own(knob):
    """Each is read at the first use of a device, or told to the allocator by the rank itself."""
    variables, _ = environment.variables({knob.full_name: 1})
    plan = make_plan(environment=variables)
    assert env.read_at_import(plan) == {}
    assert not env.needs_interpreter(plan)


def test_a_users_interface_is_kept():
    kept, _ = env.child_environment({"GLOO_SOCKET_IFNAME": "eth7"}, make_plan(), cores=2)
    assert kept["GLOO_SOCKET_IFNAME"] == "eth7"
    assert env.child_environment({}, make_plan(), cores=2)[0]["GLOO_SOCKET_IFNAME"] == "lo"


def test_a_cpu_study_stays_off_the_devices_of_its_host():
    parent = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert env.server_environment(parent, device="cpu", package_root=None)[
        "CUDA_VISIBLE_DEVICES"
    ] == ("")
    assert env.server_environment(parent, device="cuda", package_root=None)[
        "CUDA_VISIBLE_DEVICES"
    ] == ("0,1")


def test_the_package_is_put_first_on_the_path_once(tmp_path):
    once = env.with_package({"PYTHONPATH": "/a:/b"}, tmp_path)
    assert once["PYTHONPATH"] == f"{tmp_path}:/a:/b"
    assert env.with_package(once, tmp_path) == once
    assert env.with_package({}, tmp_path)["PYTHONPATH"] == str(tmp_path)
    assert env.with_package({}, None) == {}


def test_variables_read_at_import_are_told_from_late_ones():
    plan = make_plan(
        environment={"NCCL_ALGO": "Ring", "TORCH_LOGS": "x", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    )
    assert env.read_at_import(plan) == {"TORCH_LOGS": "x"}
    assert not env.needs_interpreter(plan)
    assert env.needs_interpreter(make_plan(environment={"MKL_NUM_THREADS": "4"}))


def test_a_server_reads_at_import_what_a_trial_sets_and_still_has_one_thread():
    made = env.server_environment(
        {"TORCH_LOGS": "all"},
        device="cpu",
        package_root=None,
        mark="0123456789ab",
        settings={"TORCH_LOGS": "+dynamo"},
    )
    assert made["TORCH_LOGS"] == "+dynamo"
    assert made["OMP_NUM_THREADS"] == "1"
    assert made["AUTOTUNE_TRIAL"] == "0123456789ab--------------------"
