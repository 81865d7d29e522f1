"""Whatever a file holds, it is a space or a SpaceError; whatever is drawn comes back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.contract.plan import Topology
from autotune.errors import SpaceError
from autotune.space import nodes
from autotune.space.loader import load_space, parse_space
from autotune.space.model import Choices, Domain, FloatRange
from autotune.space.search_space import SearchSpace

CPU = Topology(processes=2, device="cpu", devices_per_node=2)
SHIPPED = {name: load_space(f"{name}.yaml") for name in ("zero3", "zero", "fsdp2")}
FRAGMENTS = (
    "version", "backend", "workload", "params", "fixed", "baseline", "search", "constraints",
    "unverified", "topology", "model", "global_batch", "data", "micro_batch", "max_tokens",
    "overlap_comm", "reduce_bucket_size", "choices", "low", "high", "log", "step", "also", "when",
    "type", "int", "zero3", "fsdp2", "[zero3, fsdp2]", "qwen3-tiny", "true", "no", "null", "1",
    "deepspeed", "zero_stage",
    "16", "5e8", "010", "1:30", "-3", "1e400", "'8'", "[1, 2]", "{}", "[]", "{choices: [1, 2]}",
    "{low: 1, high: 8}", "&a", "*a", "<<", "x-a", "!!python/name:os", "5m", "5%", "packed",
)  # fmt: skip
PIECES = st.sampled_from(
    (*FRAGMENTS, ": ", ": ", "\n", "\n  ", "- ", ", ", "{", "}", "[", "]", "#")
)


def read(raw: bytes) -> None:
    """Anything but a space or a SpaceError fails the test."""
    try:
        parse_space(nodes.decode(raw, "f.yaml"), file="f.yaml").on(CPU)
    except SpaceError as error:
        if not str(error).startswith("f.yaml:") or not str(error).isprintable():
            raise AssertionError(str(error)) from error


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_space_or_a_space_error(raw: bytes) -> None:
    read(raw)


@settings(deadline=None, max_examples=200)
@given(st.lists(PIECES, max_size=30))
def test_any_words_are_a_space_or_a_space_error(pieces: list[str]) -> None:
    read("".join(pieces).encode())


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_space_is_a_space_or_a_space_error(data: st.DataObject) -> None:
    lines = SHIPPED[data.draw(st.sampled_from(sorted(SHIPPED)))].text.split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lines) - 1))
        line = lines[index]
        start = data.draw(st.integers(0, len(line)))
        end = data.draw(st.integers(start, len(line)))
        lines[index] = line[:start] + "".join(data.draw(st.lists(PIECES, max_size=2))) + line[end:]
    read("\n".join(lines).encode())


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(("a.b", "params.micro_batch", "workload", "search.trials", "fixed.x")),
    st.text(max_size=20),
)
def test_any_override_is_a_space_or_a_space_error(key: str, value: str) -> None:
    text = SHIPPED["zero3"].text
    try:
        parse_space(text, file="f.yaml", overrides=(f"{key}={value}",))
    except SpaceError as error:
        if not str(error).startswith("f.yaml:") or not str(error).isprintable():
            raise AssertionError(str(error)) from error


def draw(domain: Domain, rng: random.Random) -> Any:
    if isinstance(domain, Choices):
        return rng.choice(domain.values)
    if domain.also and rng.random() < 0.3:
        return rng.choice(domain.also)
    if isinstance(domain, FloatRange):
        return rng.uniform(domain.low, domain.high)
    return rng.randrange(domain.low, domain.high + 1, domain.step)


def assignment(space: SearchSpace, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    drawn: dict[str, Any] = {}
    if len(space.backends) > 1:
        drawn["backend"] = rng.choice(space.backends)
    for param in space.params:
        if param in space.active(drawn):
            drawn[param.name] = draw(param.domain, rng)
    return drawn


BOTH = parse_space(
    "version: 1\nbackend: [zero3, fsdp2]\nworkload: {model: m, global_batch: 16}\n"
    "params:\n  micro_batch: {low: 1, high: 8}\n  overlap_comm: {choices: [on, off]}\n"
    "  stage3_prefetch_bucket_size: {low: 1, high: 99, also: [0], when: not overlap_comm}\n"
    "  reshard_after_forward: {choices: [true, false]}\n"
    "  backward_prefetch: {low: 0, high: 3, when: reshard_after_forward == true}\n",
    file="both.yaml",
)


@pytest.mark.parametrize("space", [*SHIPPED.values(), BOTH], ids=[*SHIPPED, "both"])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_what_is_resolved_comes_back(space: SearchSpace, seed: int) -> None:
    bound = space.on(CPU)
    drawn = assignment(bound, seed)
    assert bound.contains(drawn)
    config = bound.resolve(drawn)
    assert bound.params_of(config) == drawn
    assert bound.assignment_of(config) == drawn
    assert bound.resolve(drawn) == config
    assert bound.project(config.backend, config.values) == drawn
