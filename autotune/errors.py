"""The exception tree: every error a user can meet is one sentence, a hint and an exit code.

Exit codes (a contract, tested from outside):

==== =======================================================================
code meaning
==== =======================================================================
0    done
1    the search ran and found nothing feasible, the baseline failed, there is
     nothing to export, or a check failed
2    the input is wrong: space file, ``--set``, missing file, unknown study,
     no ``config.json``, impossible batches
3    the environment is wrong: unwritable runs folder, disk full, hub not
     reached, newer schema, missing package or launcher
130  interrupted; the same command resumes
==== =======================================================================
"""

from __future__ import annotations


class AutotuneError(Exception):
    """Base of all errors that are reported to the user without a traceback.

    Args:
        message: One sentence: what went wrong and where.
        hint: What to do about it; shown on its own line. ``None`` if the message says it.
    """

    exit_code: int = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(AutotuneError):
    """What the user gave is wrong: an argument, a file, a name, an impossible batch."""

    exit_code = 2


class SpaceError(InputError):
    """A fault in a space file, with its place.

    ``str(error)`` starts with ``FILE:LINE:COLUMN:`` (both counted from 1).
    """

    def __init__(
        self, message: str, *, file: str, line: int, column: int, hint: str | None = None
    ) -> None:
        super().__init__(f"{file}:{line}:{column}: {message}", hint=hint)
        self.file = file
        self.line = line
        self.column = column


class EnvironmentFault(AutotuneError):
    """The machine is at fault: an unwritable folder, a full disk, a missing package or launcher."""

    exit_code = 3


class SchemaTooNewError(EnvironmentFault):
    """The database or a folder was written by a newer version; nothing was changed in it."""


class NothingFeasibleError(AutotuneError):
    """The search ended without a valid configuration, or the baseline itself failed."""


class NothingToExportError(AutotuneError):
    """The study has no configuration that may be exported."""


class CheckFailedError(AutotuneError):
    """A check that the user asked for did not pass."""


class InterruptedSearch(AutotuneError):
    """The user or the scheduler stopped the search; the same command resumes it."""

    exit_code = 130


class RecordError(AutotuneError):
    """A stored record (plan, outcome, rank record) is not what its schema says."""
