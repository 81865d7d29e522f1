"""Every path of a study, in one place.

::

    RUNS/autotune.db
    RUNS/STUDY/study.json              what was asked for, and where it ran
    RUNS/STUDY/space.yaml              the space file's text as first given
    RUNS/STUDY/lock                    held by the one coordinator
    RUNS/STUDY/data/                   tokens of a JSON Lines data set
    RUNS/STUDY/trials/00003/attempt-0/ one launch
    RUNS/STUDY/remeasurements/00000/attempt-0/
    RUNS/STUDY/kernels/00000/attempt-0/  a kernel compared with its reference
    RUNS/STUDY/extensions/00000/attempt-0/  what an engine compiles at first use, built before
        plan.json outcome.json
        rank-0.json rank-0.log heartbeat-0.json heartbeat-0.progress
        command.json deepspeed.json steps-RANK-PID.jsonl   of a command: what it was given, and
                                                           what its ranks reported
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Final

from autotune.contract import codec, jsonfile
from autotune.contract.outcome import Outcome, RankRecord
from autotune.contract.plan import Plan, Purpose
from autotune.errors import InputError

DATABASE_NAME: Final = "autotune.db"
"""The database in the runs folder; SQLite puts files of longer names beside it."""
MAX_NAME: Final = 100
"""Characters of a study's name."""
_SAFE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDERS: Final[dict[Purpose, str]] = {
    "trial": "trials",
    "remeasurement": "remeasurements",
    "kernel": "kernels",
    "extension": "extensions",
}


def check_study_name(name: str) -> str:
    """Return ``name`` if it is safe as a folder, in a URL and on a command line.

    Raises:
        InputError: It is not.
    """
    if name.startswith(DATABASE_NAME) or name == "README.md":
        raise InputError(
            f"{name!r} cannot be the name of a study: the runs folder has a file of that name",
            hint="choose another name with --study",
        )
    if len(name) > MAX_NAME:
        raise InputError(
            f"a study's name of {len(name):,} characters is too long",
            hint=f"choose one of at most {MAX_NAME} with --study",
        )
    if not _SAFE_NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot be the name of a study",
            hint="use letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


@dataclasses.dataclass(frozen=True)
class AttemptFolder:
    """The folder of one launch."""

    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.json"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def command_file(self) -> Path:
        """Program and arguments of a command, as they were started."""
        return self.path / "command.json"

    def rank_file(self, rank: int) -> Path:
        """The rank's own record."""
        return self.path / f"rank-{rank}.json"

    def log_file(self, rank: int) -> Path:
        """Standard output and error of the rank."""
        return self.path / f"rank-{rank}.log"

    def heartbeat_file(self, rank: int) -> Path:
        """Phase and time of the rank's last sign of life."""
        return self.path / f"heartbeat-{rank}.json"

    def write_plan(self, plan: Plan) -> None:
        jsonfile.write_json(self.plan_file, codec.to_json(plan))

    def read_plan(self) -> Plan:
        data = jsonfile.read_json(self.plan_file)
        return codec.from_json(Plan, data, where=str(self.plan_file))

    def write_rank(self, record: RankRecord) -> None:
        jsonfile.write_json(self.rank_file(record.rank), codec.to_json(record))

    def read_rank(self, rank: int) -> RankRecord | None:
        """Return the rank's record, or ``None`` if it left none.

        Raises:
            RecordError: The file is not a rank record.
        """
        path = self.rank_file(rank)
        if not path.exists():
            return None
        return codec.from_json(RankRecord, jsonfile.read_json(path), where=str(path))

    def write_outcome(self, outcome: Outcome) -> None:
        jsonfile.write_json(self.outcome_file, codec.to_json(outcome))


@dataclasses.dataclass(frozen=True)
class StudyFolder:
    """The folder of one study."""

    path: Path

    @classmethod
    def of(cls, runs: Path, study: str) -> StudyFolder:
        """The folder of ``study`` under ``runs`` (not created)."""
        return cls(runs.absolute() / check_study_name(study))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def study_file(self) -> Path:
        return self.path / "study.json"

    @property
    def space_file(self) -> Path:
        return self.path / "space.yaml"

    @property
    def lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def data(self) -> Path:
        return self.path / "data"

    def kernel_verdict(self, digest: str) -> Path:
        """What came of comparing the kernel, workload and machine of this digest."""
        return self.path / _FOLDERS["kernel"] / f"{digest}.json"

    def has_kernel_verdicts(self) -> bool:
        """Whether a kernel was compared, which may have taken minutes."""
        return any((self.path / _FOLDERS["kernel"]).glob("*.json"))

    def attempt(self, purpose: Purpose, number: int, attempt: int) -> AttemptFolder:
        """The folder of one launch (not created)."""
        return AttemptFolder(self.path / _FOLDERS[purpose] / f"{number:05d}" / f"attempt-{attempt}")
