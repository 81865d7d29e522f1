from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.space.loader import parse_space
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]


def test_comments_spelling_and_search_settings_have_no_meaning(load: Load) -> None:
    first = load("micro_batch: {choices: [1, 2]}", "reduce_bucket_size: {low: 1, high: 5e8}")
    second = load(
        "reduce_bucket_size: {type: int, high: 500_000_000, low: 1.0}  # a note",
        "workload.micro_batch: {choices: ['2', 1]}",
        rest="search: {trials: 3, seed: 5, sampler: gp}\nx-note: 3\n",
    )
    assert first.fingerprint == second.fingerprint
    assert first.differences(second) == ()


@pytest.mark.parametrize(
    ("params", "more", "words"),
    [
        (
            ("micro_batch: {choices: [1, 2, 4, 8]}",),
            {},
            "micro_batch: choices [1, 2] -> choices [1, 2, 4, 8]",
        ),
        (
            ("micro_batch: {low: 1, high: 2}",),
            {},
            "micro_batch: choices [1, 2] -> 1 … 2",
        ),
        (
            ("micro_batch: {choices: [1, 2]}", "overlap_comm: {choices: [on, off]}"),
            {},
            "overlap_comm: tuned now, choices [true, false]",
        ),
        (
            (),
            {"rest": "fixed: {overlap_comm: off}\n"},
            "fixed zero3.overlap_comm: not set -> false",
        ),
        (
            (),
            {"rest": "baseline: {reduce_bucket_size: 7}\n"},
            "baseline zero3.reduce_bucket_size: not set -> 7",
        ),
        (
            (),
            {"rest": "constraints: [micro_batch < 9]\n"},
            "constraint added: micro_batch < 9",
        ),
        ((), {"workload": ", precision: bf16"}, "workload.precision.compute: fp32 -> bf16"),
        ((), {"rest": "topology: {processes: 4}\n"}, "topology.processes: auto -> 4"),
        (
            (),
            {"rest": "search: {memory_margin: 10%}\n"},
            "search.memory_margin_share: 0.05 -> 0.1",
        ),
    ],
)
def test_a_change_is_said_in_words(
    load: Load, params: tuple[str, ...], more: dict[str, str], words: str
) -> None:
    before, after = load(), load(*params, **more)
    assert before.differences(after) == (words,)
    assert before.fingerprint != after.fingerprint


def test_a_change_of_a_condition(load: Load) -> None:
    fixed = "fixed: {overlap_comm: on}\n"
    before = load(rest=fixed)
    after = load("micro_batch: {choices: [1, 2], when: overlap_comm}", rest=fixed)
    assert before.differences(after) == ("micro_batch: when: always -> overlap_comm",)


def test_text_and_overrides_rebuild_the_space(load: Load) -> None:
    space = load(overrides=("workload.data.max_length=512", "search.trials=3"))
    again = parse_space(space.text, file=space.file, overrides=space.overrides)
    assert again == space
    assert again.fingerprint == space.fingerprint
    assert again.workload.data.max_length == 512
