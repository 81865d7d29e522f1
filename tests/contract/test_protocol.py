from __future__ import annotations

import pytest

from autotune.contract import protocol as p
from autotune.errors import RecordError

RUN = p.Run(
    job="0" * 32,
    folder="/odd \udcff\n'",
    processes=2,
    environment={"A": "b\n"},
    entry="m:f",
    total_s=1.0,
    phase_s={"build": 2.0},
)
EXITED = p.Exited(job="j", rank=1, code=None, signal=9)


def test_messages_survive_the_wire():
    line = p.encode(RUN)
    assert line.count(b"\n") == 1
    assert p.decode_command(line) == RUN
    assert p.decode_command(p.encode(p.Quit())) == p.Quit()
    assert p.decode_event(p.encode(EXITED)) == EXITED


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"\x80\x04pickle",
        b"[" * 100_000,
        b'{"job": "j"}',
        b'{"type": "format_disk"}',
        b'{"type": "kill", "job": "j"}',
        b'{"type": "kill", "job": "j", "signal": "9"}',
        b'{"type": "kill", "job": "j", "signal": true}',
        b'{"type": "kill", "job": "j", "signal": 9, "more": 1}',
        b'{"type": "exited", "job": "j", "rank": 0, "code": 0, "signal": null}',
    ],
)
def test_what_is_no_command_is_refused(line):
    with pytest.raises(RecordError, match="control channel"):
        p.decode_command(line)


def test_lines_are_put_together_from_pieces():
    lines = p.Lines()
    assert lines.feed(b"on") == []
    assert lines.feed(b"e\ntwo\nthr") == [b"one", b"two"]
    assert lines.feed(b"ee\n") == [b"three"]


def test_an_endless_line_is_refused():
    with pytest.raises(RecordError, match="without an end"):
        p.Lines().feed(b"x" * (p.MAX_LINE_BYTES + 1))
