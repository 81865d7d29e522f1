from __future__ import annotations

from pathlib import Path

import pytest

from autotune.contract.command import (
    fill_all,
    placeholders,
    renamed,
    rendered_file,
    text_of,
)


def test_placeholders_and_braces() -> None:
    assert placeholders("a{b}c{param:d.e}") == ("b", "param:d.e")
    assert placeholders('{{"json": 1}}') == ()
    assert placeholders('{"json": 1}') == ('"json": 1',)
    for lone in ("{", "a}", "{a", "{{}"):
        with pytest.raises(ValueError, match="has no partner"):
            placeholders(lone)


def test_arguments_are_filled_once() -> None:
    """A value that looks like a placeholder stays what it is."""
    command = ("run", "{trial_dir}/x", "-n{processes}", "{{}}", "{deepspeed_json}",
               "{param:command.name}={param:zero3.overlap_comm}")  # fmt: skip
    assert fill_all(
        command,
        {"command.name": "{trial_dir}", "zero3.overlap_comm": True},
        folder=Path("/t"),
        processes=8,
        rendered={"deepspeed_json": rendered_file(Path("/t"), "deepspeed_json")},
    ) == ["run", "/t/x", "-n8", "{}", "/t/deepspeed.json", "{trial_dir}=true"]


def test_renaming_keeps_doubled_braces() -> None:
    assert renamed("{{{a}}}{b}", {"a": "c"}) == "{{{c}}}{b}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (None, "none"), (500_000_000, "500000000"), (0.5, "0.5"), ("full", "full")],
)
def test_values_as_arguments(value: object, text: str) -> None:
    assert text_of(value) == text
