"""Environment variables in space files: named ones only, ``null`` is a value, the site's stay."""

from __future__ import annotations

import pytest

from autotune.contract.plan import Topology
from autotune.errors import InputError
from autotune.knobs import environment
from autotune.search.site import with_site_values

CUDA = Topology(processes=2, device="cuda", devices_per_node=2)
BUFFER = "env.NCCL_BUFFSIZE: {choices: [null, 1048576, 8388608]}"


def test_only_what_the_file_names_is_part_of_a_configuration(load):
    space = load(BUFFER, "micro_batch: {choices: [1, 2]}").on(CUDA)
    named = {name for name in space.baseline_config().values if name.startswith("env.")}
    assert named == {"env.NCCL_BUFFSIZE"}
    plain = load("micro_batch: {choices: [1, 2]}").on(CUDA)
    assert not any(name.startswith("env.") for name in plain.baseline_config().values)


def test_null_is_a_value_and_leaves_no_trace_in_the_key(load):
    space = load(BUFFER, "micro_batch: {choices: [1, 2]}").on(CUDA)
    plain = load("micro_batch: {choices: [1, 2]}").on(CUDA)
    unset = space.resolve({"env.NCCL_BUFFSIZE": None, "micro_batch": 2})
    larger = space.resolve({"env.NCCL_BUFFSIZE": 8_388_608, "micro_batch": 2})
    assert unset.key == plain.resolve({"micro_batch": 2}).key
    assert larger.key != unset.key
    assert environment.variables(unset.values) == ({}, ("NCCL_BUFFSIZE",))
    assert environment.variables(larger.values) == ({"NCCL_BUFFSIZE": "8388608"}, ())


def test_allocator_settings_are_one_text_under_both_names(load):
    space = load(
        "env.PYTORCH_ALLOC_CONF: {choices: [null, 'expandable_segments:True', "
        "'garbage_collection_threshold:0.8,max_split_size_mb:512']}"
    ).on(CUDA)
    config = space.resolve({"env.PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert environment.variables(config.values)[0] == {
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("env.PYTORCH_ALLOC_CONF: {choices: [null, 'backend:cudaMallocAsync']}", "cannot be"),
        ("env.PYTORCH_ALLOC_CONF: {choices: [null, 'expandable_segments:yes']}", "cannot be"),
        ("env.PYTORCH_CUDA_ALLOC_CONF: {choices: [null]}", "env.PYTORCH_ALLOC_CONF says it"),
        ("env.NCCL_NVLS_ENABLE: {choices: [0, 1]}", "never changed nor tuned"),
        ("env.TORCH_SYMM_MEM_DISABLE_MULTICAST: {choices: [0, 1]}", "never changed nor tuned"),
        ("env.NVSHMEM_DISABLE_NVLS: {choices: [0, 1]}", "never changed nor tuned"),
        ("NCCL_NVLS_ENABLE: {choices: [0, 1]}", "never changed nor tuned"),
        ("env.NCCL_PROTO: {choices: [LL]}", "corrupts data"),
        ("env.NCCL_MAX_CTA: {choices: [8]}", "env.NCCL_MAX_CTA is no knob"),
        ("env.NCCL_MAX_CTAS: {choices: [65]}", "at most 64"),
    ],
)
def test_what_is_no_knob_or_no_value_is_refused_in_words(load, line, words):
    with pytest.raises(InputError, match=words):
        load(line)


def test_the_sites_own_value_is_the_baseline_where_the_file_names_the_variable(load):
    space = load(BUFFER, "micro_batch: {choices: [1, 2]}")
    present = {"NCCL_BUFFSIZE": "1048576", "NCCL_MAX_CTAS": "8"}
    taken, notes = with_site_values(space, present)
    assert taken.on(CUDA).baseline_config().values["env.NCCL_BUFFSIZE"] == 1_048_576
    assert notes == ("the baseline has env.NCCL_BUFFSIZE = 1048576, as it is set here",)
    stated, notes = with_site_values(
        load(BUFFER, rest="baseline: {env.NCCL_BUFFSIZE: null}\n"), present
    )
    assert stated.on(CUDA).baseline_config().values["env.NCCL_BUFFSIZE"] is None
    assert notes == ()


def test_not_set_is_no_launch_that_inherited_the_sites_value(load):
    present = {"NCCL_BUFFSIZE": "1048576"}
    rows = "micro_batch: {choices: [1, 2]}"
    named, _ = with_site_values(load(BUFFER, rows), present)
    plain, _ = with_site_values(load(rows), present)
    inherited = plain.on(CUDA).resolve({"micro_batch": 2}).key
    unset = named.on(CUDA).resolve({"env.NCCL_BUFFSIZE": None, "micro_batch": 2}).key
    stated = named.on(CUDA).resolve({"env.NCCL_BUFFSIZE": 1_048_576, "micro_batch": 2}).key
    assert len({inherited, unset, stated}) == 3


def test_a_site_value_that_is_none_of_the_knobs_stops_the_search(load):
    with pytest.raises(InputError, match=r"NCCL_BUFFSIZE='4M', which is no value"):
        with_site_values(load(BUFFER), {"NCCL_BUFFSIZE": "4M"})


def test_allocator_settings_of_the_site_count_under_either_name(load):
    space = load("env.PYTORCH_ALLOC_CONF: {choices: [null, 'expandable_segments:True']}")
    present = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    taken, _ = with_site_values(space, present)
    assert taken.baseline["env.PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
