"""The program: finds the command, and turns every exception into a sentence and an exit code.

A command's module is imported when it is asked for, so ``autotune --help`` stays as light as
typer. Exit codes are those of :mod:`autotune.errors`.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from autotune import __version__
from autotune.errors import AutotuneError, EnvironmentFault, InterruptedSearch, SpaceError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "search": ("autotune.cli.search", "Find the fastest valid configuration of a space file."),
    "status": ("autotune.cli.status", "Show how far a study is."),
    "report": ("autotune.cli.report", "Show what a study found; --json for programs."),
    "export": ("autotune.cli.export", "Write the best configuration for production."),
    "compare": ("autotune.cli.compare", "Say which of two configurations is faster."),
    "doctor": ("autotune.cli.doctor", "Check whether a search can run here; --json for programs."),
    "import": ("autotune.cli.import_", "Rebuild the database from trial folders."),
}
"""Command to (module with ``register(app)``, line shown by ``autotune --help``)."""


class _LazyGroup(TyperGroup):
    """Imports a command's module when that command is run, not to list it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All commands, in the order of use."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and build one command; ``None`` if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        holder = _new_app()
        importlib.import_module(COMMANDS[cmd_name][0]).register(holder)
        return typer.main.get_group(holder).commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does; its suggestions for a mistyped name need the names at hand."""
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]  # names alone
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _new_app(**settings: Any) -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
        **settings,
    )


app = _new_app(cls=_LazyGroup, no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"autotune {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Add the traceback to an error; works on any command.")
    ] = False,
) -> None:
    """Find the fastest valid training configuration on your own machines.

    Exit codes: 0 done; 1 nothing feasible, nothing to export or a check failed; 2 wrong input;
    3 wrong environment; 130 interrupted (the same command resumes).
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code.

    Args:
        arguments: Command line without the program's name; ``None`` takes ``sys.argv``.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = _take_debug(words)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a sign must not turn a result into an error.
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        code = 0
    except (Exception, KeyboardInterrupt) as error:
        with contextlib.suppress(OSError):  # nobody is left to be told
            code = error.exit_code if isinstance(error, AutotuneError) else 1
            code = _report(error, debug=debug)
    _let_go_of_dead_streams()
    return code


def _open_missing_streams() -> None:
    """Open nothing in place of standard streams that the caller closed (``autotune … >&-``).

    Else the next file to be opened, the database or a trial's log, would take the number of one
    of them, and be written to by whatever prints.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nothing = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _take_debug(words: list[str]) -> bool:
    """Remove ``--debug`` from before any ``--``, so that it may stand at every command."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    found = len(kept) < end
    words[:end] = kept
    return found


def _run(words: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        result = command.main(words, prog_name="autotune", standalone_mode=False)
    except SystemExit as request:
        if isinstance(request.__context__, BrokenPipeError):
            raise BrokenPipeError from request
        return _code_of(request.code)
    return result if isinstance(result, int) else 0


def _code_of(code: Any) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _report(error: BaseException, *, debug: bool) -> int:
    """Print ``error`` for a person and return the exit code."""
    show = getattr(error, "show", None)
    if callable(show):  # typer's usage errors know their own text
        show()
        return _code_of(getattr(error, "exit_code", 2))
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    told = _as_told(error)
    # A fault in a space file starts with its place, as compilers print it and editors read it.
    prefix = "" if isinstance(told, SpaceError) else "autotune: "
    print(f"{prefix}{told.message}", file=sys.stderr)
    if told.hint:
        print(f"  {told.hint}", file=sys.stderr)
    return told.exit_code


def _as_told(error: BaseException) -> AutotuneError:
    """Return the error that the user is told of."""
    if isinstance(error, AutotuneError):
        return error
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return InterruptedSearch("interrupted")
    if isinstance(error, ImportError) and not (error.name or "").startswith("autotune"):
        return EnvironmentFault(
            f"a package cannot be loaded: {error}",
            hint="install it into the environment that runs autotune",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return _os_fault(error)
    return AutotuneError(
        f"an error inside autotune ({type(error).__name__}: {error})",
        hint="please report it, with what the same command prints with --debug",
    )


def _os_fault(error: OSError) -> EnvironmentFault:
    if error.errno == errno.ENOENT and not error.filename and not _has_working_folder():
        return EnvironmentFault(
            "the working folder was deleted", hint="change to a folder that exists"
        )
    place = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(
            f"no space left on the disk{place}",
            hint="free some space or choose another folder with --runs; the same command resumes",
        )
    return EnvironmentFault(f"{error.strerror or error}{place}", hint="--debug shows where")


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True


def _let_go_of_dead_streams() -> None:
    """Point output that nobody takes at nothing, so that the interpreter's last flush is quiet."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, stream.fileno())
            os.close(nothing)
