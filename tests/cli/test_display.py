"""What a running search does when nobody sees it any more."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.display import LiveDisplay, PlainDisplay, make_display
from autotune.errors import InterruptedSearch
from autotune.search.events import Message

ROOT = Path(__file__).resolve().parents[2]


class Unbuffered:
    """A text stream on a file descriptor that keeps nothing back."""

    encoding = "utf-8"

    def __init__(self, number):
        self.number = number

    def write(self, text):
        return os.write(self.number, text.encode())

    def flush(self):
        pass

    def isatty(self):
        return os.isatty(self.number)

    def fileno(self):
        return self.number


def test_a_pipe_without_a_reader_stops_the_search():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with (
        make_display(Unbuffered(write_end)) as display,
        pytest.raises(InterruptedSearch, match="nobody reads"),
    ):
        display(Message(text="trial 0"))
    assert isinstance(display, PlainDisplay)
    os.close(write_end)


def test_a_closed_terminal_stops_the_search(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with make_display(Unbuffered(theirs)) as display:
        display(Message(text="trial 0"))
        os.close(ours)
        with pytest.raises(InterruptedSearch, match="nobody reads"):
            display(Message(text="trial 1"))
    assert isinstance(display, LiveDisplay)
    os.close(theirs)


def test_a_search_whose_reader_left_is_interrupted_not_done():
    """Exit code 0 would say that it is done."""
    code = (
        "import sys, types\n"
        "from autotune.cli import main as program\n"
        "from autotune.cli.display import make_display\n"
        "from autotune.search.events import Message\n"
        "def show():\n"
        "    with make_display(sys.stdout) as display:\n"
        "        display(Message(text='trial 0'))\n"
        "probe = types.ModuleType('p')\n"
        "probe.register = lambda app: app.command('search')(show)\n"
        "sys.modules['p'] = probe\n"
        "program.COMMANDS['search'] = ('p', '')\n"
        "sys.exit(program.main(['search']))\n"
    )
    for stderr in (subprocess.PIPE, subprocess.STDOUT):
        read_end, write_end = os.pipe()
        os.close(read_end)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=write_end,
            stderr=stderr,
            text=True,
        )
        os.close(write_end)
        assert done.returncode == 130
        assert done.stderr in (None, "autotune: nobody reads the output any more\n")
