"""Record a table: every configuration of a grid, launched once through the program's own launcher.

    python benchmarks/tables.py qwen3-4b-fsdp2 --limit 600 --repeat 10
    python benchmarks/tables.py GRID.yaml --output FILE.jsonl [--from PARTIAL] [--dry-run]

GRID is a grid file (``benchmarks/tables``, see grids.py). The baseline comes first, then the others
in a seeded random order, so a partial table is an unbiased sample. Each launch is judged as a
trial of a search is (read-back, numerics gate, memory) and is one line of the table, on disk
before the next one starts. Ctrl-C, SIGTERM and ``--limit`` lose nothing: the same command goes on
where it stopped, on another machine of the same kind with the partial table as ``--from``. A table
that is complete is compressed: ``FILE.jsonl.gz``. ``--repeat N`` launches N configurations over the
whole range of times again at the end; they should come within 2 % of their first launch.

Exit codes: 0 complete, 1 a repeat was further off or the baseline failed, 2 and 3 as those of
autotune, 130 stopped before the end.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
from grids import Grid, find_grid, make_grid, read_spec
from table_file import TableFile, portable, portable_failure

from autotune.contract.folder import AttemptFolder, StudyFolder
from autotune.contract.outcome import Outcome, RankRecord
from autotune.contract.plan import Purpose, Reference
from autotune.contract.table import TableRow
from autotune.errors import AutotuneError, EnvironmentFault
from autotune.knobs.words import settings_words
from autotune.launchers.base import Order
from autotune.search.device_memory import DeviceMemory
from autotune.search.events import Event, Message
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Launch, Runner
from autotune.search.mfu import flops_of
from autotune.search.preflight import prepare
from autotune.search.request import SearchRequest
from autotune.space.model import Config

RESULTS = Path(__file__).resolve().parent / "results" / "tables"
STUDY = "table"
MARK = 0.02
"""A repeated launch should come as near as this to the first one."""
STOPPED = 130
RESERVE_S = 8.0
"""Before ``--limit`` a launch that still runs is ended, and the server closed."""
GUESS_S = 9.0
"""Seconds for a configuration, before any was launched."""


class Attempts:
    """Where launches write. It takes the place of a study's recorder."""

    def __init__(self, study: StudyFolder) -> None:
        self._study = study
        self.last: AttemptFolder | None = None

    def attempt_folder(self, purpose: Purpose, number: int, attempt: int) -> AttemptFolder:
        self.last = self._study.attempt(purpose, number, attempt)
        self.last.path.mkdir(parents=True, exist_ok=True)
        return self.last

    def record_outcome(self, *_: object) -> None:
        """The table holds it."""


class Recording:
    """Launches what a table lacks."""

    def __init__(
        self, grid: Grid, file: TableFile, interrupts: Interrupts, ends_at: float | None
    ) -> None:
        self._grid, self._file = grid, file
        self._interrupts, self._ends_at = interrupts, ends_at
        prepared = grid.prepared
        self._attempts = Attempts(prepared.folder)
        self._walls: list[float] = []
        uuids = [one.uuid for one in prepared.devices.found]
        watched = prepared.topology.device == "cuda"
        self._runner = Runner(
            launcher=prepared.where.kind.launcher(
                Order(
                    study=prepared.folder,
                    topology=prepared.topology,
                    backends=prepared.space.backends,
                    is_command=False,
                    seed=grid.spec.seed,
                )
            ),
            recorder=self._attempts,  # type: ignore[arg-type]  # has what the runner uses
            planner=grid.planner,
            interrupts=interrupts,
            events=_say,
            flops=flops_of(prepared.workload, prepared.topology, prepared.devices),
            devices=(lambda: DeviceMemory(uuids, wait=interrupts.wait)) if watched else None,
        )

    def run(self, repeats: int) -> bool:
        """Launch what is missing; return whether the table is complete."""
        try:
            return self._all(self._missing(), 0) and self._all(self._again(repeats), 1)
        finally:
            self._runner.close()

    def _missing(self) -> list[Config]:
        baseline, *others = self._grid.configs
        others.sort(key=lambda config: config.key)
        random.Random(self._grid.spec.seed).shuffle(others)
        return [one for one in (baseline, *others) if self._file.first(one.key) is None]

    def _again(self, repeats: int) -> list[Config]:
        """Configurations over the whole range of times that were launched once."""
        first = [row for row in self._file.rows if not row.repeat and row.s_per_it is not None]
        first.sort(key=lambda row: (row.s_per_it, row.key))
        count = min(repeats, len(first))
        places = {round(i * (len(first) - 1) / max(1, count - 1)) for i in range(count)}
        done = {row.key for row in self._file.rows if row.repeat}
        wanted = {first[place].key for place in places} - done
        return [config for config in self._grid.configs if config.key in wanted]

    def _all(self, configs: list[Config], repeat: int) -> bool:
        for index, config in enumerate(configs):
            if not self._has_time():
                return False
            row = self._launch(config, repeat)
            if row is None:
                return False
            if row.key == self._grid.header.baseline_key and row.failure is not None:
                # Without its losses no other launch can be judged: nothing is recorded.
                raise AutotuneError(f"the baseline failed: {row.failure.reason}")
            self._file.append(row)
            self._walls.append(row.wall_s)
            self._show(row, len(configs) - index - 1)
        return True

    def _has_time(self) -> bool:
        if self._interrupts.requested:
            return False
        if self._ends_at is None:
            return True
        # Not the longest one: a launch that is ended by the limit costs no more than not trying.
        usual = statistics.median(self._walls) if self._walls else GUESS_S
        return time.monotonic() + usual + RESERVE_S < self._ends_at

    def _launch(self, config: Config, repeat: int) -> TableRow | None:
        """Launch a configuration; ``None``: the recording was stopped."""
        number = len(self._file.rows)
        space = self._grid.prepared.space
        params = space.params_of(config)
        outcome = self._runner.run(
            Launch(
                purpose="trial",
                number=number,
                first_attempt=0,
                config=config,
                params=params,
                label=f"launch {number}",
                reference=self._reference(config),
                racing=None,
            )
        )
        failure = outcome.failure
        if failure is not None and failure.kind == "interrupted":
            return None
        if failure is not None and failure.kind == "infra":
            raise EnvironmentFault(
                f"the machine failed: {failure.reason}", hint="the same command goes on"
            )
        assert self._attempts.last is not None
        return TableRow(
            launch=number,
            repeat=repeat,
            key=config.key,
            backend=config.backend,
            params=params,
            config=dict(config.values),
            dead=config.dead,
            submitted_at=outcome.submitted_at,
            wall_s=outcome.wall_s,
            overhead_s=outcome.overhead_s,
            failure=None if failure is None else portable_failure(failure),
            s_per_it=outcome.measurement.s_per_it if outcome.measurement is not None else None,
            ranks=self._records(outcome),
        )

    def _reference(self, config: Config) -> Reference:
        """What the baseline computed; nothing yet for the baseline itself."""
        row = self._file.first(self._grid.header.baseline_key)
        if row is None or config.key == row.key:
            return Reference()
        measured = row.ranks[0].measurement
        assert measured is not None, "a recording ends where its baseline fails"
        return Reference(checks=measured.checks, implementations=measured.implementations)

    def _records(self, outcome: Outcome) -> tuple[RankRecord, ...]:
        folder = self._attempts.last
        assert folder is not None
        found: list[RankRecord] = []
        for rank in range(self._grid.prepared.topology.processes):
            try:
                record = folder.read_rank(rank)
            except AutotuneError:
                continue  # a damaged record: the failure says so
            if record is not None and record.plan_digest == outcome.plan_digest:
                found.append(portable(record))
        return tuple(found)

    def _show(self, row: TableRow, left: int) -> None:
        result = row.failure.kind if row.failure is not None else f"{row.s_per_it:.4f} s/it"
        each = statistics.fmean(self._walls)
        print(
            f"[{row.launch + 1}] {result}, {row.wall_s:.1f} s of which {row.overhead_s:.1f} s "
            f"overhead, {left} left (about {left * each:.0f} s): {settings_words(row.params)}",
            flush=True,
        )


def _say(event: Event) -> None:
    if isinstance(event, Message):
        print(event.text, file=sys.stderr, flush=True)


def summary(rows: list[TableRow]) -> list[list[str]]:
    """The table in a few figures."""
    first = [row for row in rows if not row.repeat]
    times = sorted(row.s_per_it for row in first if row.s_per_it is not None)
    kinds: dict[str, int] = {}
    for row in first:
        if row.failure is not None:
            kinds[row.failure.kind] = kinds.get(row.failure.kind, 0) + 1
    found = [
        ["figure", "value"],
        ["configurations", str(len(first))],
        ["measured", str(len(times))],
    ]
    found += [[kind, str(count)] for kind, count in sorted(kinds.items())]
    if times:
        spread = f"{times[0]:.4f} … {statistics.median(times):.4f} … {times[-1]:.4f} s/it"
        found += [["best, median, worst", spread]]
    if first:
        walls = statistics.fmean(row.wall_s for row in first)
        overhead = statistics.median(row.overhead_s for row in first)
        found += [["seconds a configuration", f"{walls:.2f}, overhead {overhead:.2f} (median)"]]
    return found


def repeats(rows: list[TableRow]) -> list[tuple[TableRow, float | None]]:
    """Repeated launches, each with how far it is from the first as a share of it."""
    first = {row.key: row for row in rows if not row.repeat}
    found: list[tuple[TableRow, float | None]] = []
    for row in rows:
        if row.repeat:
            before, now = first[row.key].s_per_it, row.s_per_it
            apart = None if before is None or now is None else now / before - 1.0
            found.append((row, apart))
    return found


def _report(file: TableFile) -> bool:
    """Print the table's figures; return whether every repeat came near enough."""
    print(harness.table(summary(file.rows)))
    fine = True
    for row, apart in repeats(file.rows):
        near = apart is not None and abs(apart) <= MARK
        fine &= near
        text = "failed" if apart is None else f"{apart:+.2%}"
        print(f"repeat {text}{'' if near else ' (mark: 2 %)'}: {settings_words(row.params)}")
    return fine


def record(options: argparse.Namespace, interrupts: Interrupts, scratch: Path, begun: float) -> int:
    """Do what the command line asks for and return the exit code."""
    path = find_grid(options.grid)
    spec = read_spec(path)
    request = SearchRequest(
        space=str(path),
        overrides=tuple(options.set),
        trials=1,
        study=STUDY,
        runs=scratch / "runs",
        launcher="local",
        anchors=False,
    )
    grid = make_grid(path, spec, prepare(request, staging=scratch))
    header = grid.header
    print(
        f"table {header.name}: {header.num_configs} configurations on "
        f"{header.topology.processes} × {header.topology.device}"
        + (f", {header.depth.layers} of {header.depth.of} layers" if header.depth else "")
    )
    for note in grid.prepared.notes:
        print(f"  {note}")
    for reason, count in header.refused.items():
        print(f"  {count} cost no launch: {reason}")
    if options.dry_run:
        print(f"about {header.num_configs * GUESS_S:.0f} s")
        return 0
    output = options.output or RESULTS / f"{spec.name}.jsonl"
    file = TableFile(output, header, options.start)
    ends_at = None if options.limit is None else begun + options.limit
    if ends_at is not None:
        timer = threading.Timer(ends_at - RESERVE_S / 2 - time.monotonic(), interrupts.request)
        timer.daemon = True
        timer.start()
    complete = Recording(grid, file, interrupts, ends_at).run(options.repeat)
    fine = _report(file)
    if not complete:
        print(f"stopped with {len(file.rows)} launches in {output}; the same command goes on")
        return STOPPED
    packed = file.pack()
    print(f"wrote {packed} ({packed.stat().st_size:,} bytes)")
    return 0 if fine else 1


def main() -> int:
    begun = time.monotonic()
    parser = harness.parser(__doc__)
    parser.add_argument("grid", metavar="GRID", help="grid file, or the name of a shipped one")
    parser.add_argument("--from", dest="start", type=Path, help="partial table to go on with")
    parser.add_argument("--limit", type=float, help="stop before so many seconds have passed")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help="launch N again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--scratch", type=Path, help="keep run folders and compilers' caches here")
    parser.add_argument("--dry-run", action="store_true", help="say what would be recorded")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as name, Interrupts() as interrupts:
            return record(options, interrupts, (options.scratch or Path(name)).absolute(), begun)
    except AutotuneError as error:
        print(f"error: {error}", *([error.hint] if error.hint else []), sep="\n", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return STOPPED


if __name__ == "__main__":
    sys.exit(main())
