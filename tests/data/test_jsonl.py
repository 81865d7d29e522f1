"""JSON Lines files of other people."""

import json

import pytest

from autotune.data.jsonl import JsonLines
from autotune.errors import InputError

GOOD = '{"text": "a"}'


def lines_of(tmp_path, content: str | bytes) -> JsonLines:
    path = tmp_path / "my chats.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return JsonLines(path)


def test_all_three_forms_are_read_by_their_place(tmp_path):
    samples = [
        {"messages": [{"role": "user", "content": "hé\u2028llo"}], "id": 3},
        {"prompt": "p", "completion": "c"},
        {"text": ""},
    ]
    content = "\n".join(json.dumps(sample, ensure_ascii=False) for sample in samples)
    lines = lines_of(tmp_path, content)
    assert len(lines) == 3
    assert list(lines.read(iter([2, 0, 1]))) == [(3, samples[2]), (1, samples[0]), (2, samples[1])]


def test_blank_lines_byte_order_mark_and_carriage_returns(tmp_path):
    lines = lines_of(tmp_path, b'\xef\xbb\xbf{"text": "a"}\r\n\r\n  \n{"text": "b"}\r\n')
    assert [number for number, _ in lines.read(iter([0, 1]))] == [1, 4]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('["text"]', "must be a JSON object"),
        ("{}", "the sample has no 'text'"),
        ('{"text": 3}', "'text' must be text"),
        ('{"prompt": "p"}', "the sample has no 'completion'"),
        ('{"completion": "p"}', "the sample has no 'prompt'"),
        ('{"prompt": [], "completion": []}', "'prompt' must be text"),
        ('{"messages": []}', "'messages' must be a list of at least one message"),
        ('{"messages": "hi"}', "'messages' must be a list"),
        ('{"messages": [{"content": "x"}]}', "message 1 must be an object with a 'role'"),
        ('{"messages": [{"role": "user", "content": 3}]}', "'content' of message 1 must be text"),
        ('{"conversations": []}', "the sample has no 'text'"),
    ],
)
def test_bad_line_is_named_with_its_number(tmp_path, line, message):
    with pytest.raises(InputError, match=message) as caught:
        lines_of(tmp_path, f"{GOOD}\n\n{line}\n{GOOD}\n")
    assert str(caught.value).startswith(f"{tmp_path}/my chats.jsonl:3: ")


def test_bytes_that_are_no_utf8(tmp_path):
    with pytest.raises(InputError, match=r"jsonl:2: not UTF-8 text \(byte 11\)"):
        lines_of(tmp_path, GOOD.encode() + b'\n{"text": "\xff"}\n')


def test_empty_file(tmp_path):
    with pytest.raises(InputError, match="holds no samples"):
        lines_of(tmp_path, "\n\n")
