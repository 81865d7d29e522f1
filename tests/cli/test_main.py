"""The program as a user meets it: exit codes, messages, streams."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from autotune import __version__, errors, registry
from autotune.cli import main as program

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments, folder, **settings):
    return subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        **settings,
    )


@pytest.fixture
def with_command(monkeypatch):
    """Let ``autotune probe`` do whatever the test gives."""

    def install(action):
        def probe(study: str = "s") -> None:
            action()

        module = SimpleNamespace(register=lambda app: app.command("probe")(probe))
        monkeypatch.setitem(program.COMMANDS, "probe", ("probe_module", "Try."))
        monkeypatch.setitem(sys.modules, "probe_module", module)

    return install


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_and_its_line(flag, tmp_path):
    done = run(flag, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for command in ("search", "status", "report", "export", "doctor", "import"):
        assert f"\n  {command} " in done.stdout
    assert "completion" not in done.stdout


def test_the_help_of_export_names_every_format(tmp_path):
    text = run("export", "--help", folder=tmp_path).stdout
    line = text[text.index("--format F") : text.index("--output")]
    words = line.partition("[default")[0]
    assert [name for name in registry.names("exporters") if name not in words] == []


def test_version(tmp_path):
    done = run("--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"autotune {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["serch"], "No such command 'serch'. Did you mean 'search'?"),
        (["--no-such-option"], "--no-such-option"),
        ([], "Usage: autotune"),
    ],
)
def test_wrong_usage_exits_2_and_says_so_on_stderr(arguments, text, tmp_path):
    done = run(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_wrong_usage_of_a_command_exits_2(with_command, capsys):
    with_command(lambda: None)
    assert program.main(["probe"]) == 0
    assert program.main(["probe", "--nope"]) == 2
    assert "No such option: --nope" in capsys.readouterr().err
    assert program.main(["probe", "stray"]) == 2


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.InputError("no study 'x'", hint="see autotune status"), 2,
         "autotune: no study 'x'\n  see autotune status\n"),
        (errors.SpaceError("bad range", file="z.yaml", line=3, column=7), 2,
         "z.yaml:3:7: bad range\n"),
        (errors.EnvironmentFault("disk"), 3, "autotune: disk\n"),
        (errors.NothingFeasibleError("none"), 1, "autotune: none\n"),
        (errors.InterruptedSearch("stopped"), 130, "autotune: stopped\n"),
        (KeyboardInterrupt(), 130, None),
        (OSError(errno.ENOSPC, "No space left on device", "/r/x.json"), 3,
         "autotune: no space left on the disk: /r/x.json\n  free some space or choose another "
         "folder with --runs; the same command resumes\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/r"), 3,
         "autotune: Permission denied: /r\n  --debug shows where\n"),
        (ModuleNotFoundError("No module named 'scipy'", name="scipy"), 3,
         "autotune: a package cannot be loaded: No module named 'scipy'\n"
         "  install it into the environment that runs autotune\n"),
        (ZeroDivisionError("division by zero"), 1,
         "autotune: an error inside autotune (ZeroDivisionError: division by zero)\n"
         "  please report it, with what the same command prints with --debug\n"),
        (typer.Exit(3), 3, ""),
        (SystemExit(2), 2, ""),
    ],
)  # fmt: skip
def test_exceptions_become_a_sentence_and_an_exit_code(error, code, text, with_command, capsys):
    with_command(raising(error))
    assert program.main(["probe"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    if text is not None:
        assert printed.err == text


@pytest.mark.parametrize("words", [["--debug", "probe"], ["probe", "--debug"]])
def test_debug_adds_the_traceback_wherever_it_stands(words, with_command, capsys):
    with_command(raising(errors.InputError("wrong")))
    assert program.main(words) == 2
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert printed.endswith("autotune: wrong\n")


def test_a_reader_that_leaves_is_no_error(tmp_path):
    """As in ``autotune report | head -1``."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_on_a_full_disk_exits_3(tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "--help"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 3
    assert done.stderr.startswith("autotune: no space left on the disk")


def test_a_terminal_without_the_signs_still_gets_the_text(tmp_path):
    code = (
        "import sys, types\n"
        "from autotune.cli import main as program\n"
        "probe = types.ModuleType('p')\n"
        "probe.register = lambda app: app.command('status')(lambda: print('1.68× ± 1 %'))\n"
        "sys.modules['p'] = probe\n"
        "program.COMMANDS['status'] = ('p', '')\n"
        "sys.exit(program.main(['status']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "1.68\\xd7 \\xb1 1 %\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error_and_their_numbers_are_not_given_to_files(closed, tmp_path):
    code = "import os, sys; from autotune.cli.main import main; code = main(['--help']); " + (
        "file = open('kept', 'w'); sys.exit(code if file.fileno() > 2 else 99)"
    )
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("Usage" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


def test_a_deleted_working_folder_is_named_as_the_cause(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os; os.rmdir(os.getcwd()); from autotune.cli.main import main; "
        "raise SystemExit(main(['search', '--space', 'zero3.yaml', '--dry-run']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "the working folder was deleted" in done.stderr
