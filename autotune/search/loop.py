"""The search proper: baseline, anchors, proposals, until ``--trials`` or the space is used up."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Final, Literal

from autotune.contract.failures import POLICIES, next_step
from autotune.contract.outcome import Outcome
from autotune.contract.plan import Racing, Reference
from autotune.errors import EnvironmentFault, InterruptedSearch, NothingFeasibleError
from autotune.search import disk, giving_up, history, noise
from autotune.search.advice import failures_table
from autotune.search.anchors import Anchor
from autotune.search.events import EventSink, Message, Progress
from autotune.search.interrupts import Interrupts
from autotune.search.launching import Launch, Runner
from autotune.search.planning import Planner
from autotune.search.projection import Projection
from autotune.search.proposals import START_UP_TRIALS, Exhausted, propose
from autotune.space.model import Config
from autotune.store.recorder import StudyRecorder
from autotune.store.records import (
    RemeasurementHeader,
    Role,
    StudyContents,
    TrialHeader,
    TrialRecord,
    Verdict,
)

NOISE_EVERY: Final = 8
"""Trials between two launches of the baseline that measure the noise between launches."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What the command line asks of the loop."""

    trials: int
    """How many trials the study is to have."""
    anchors: tuple[Anchor, ...] = ()
    """Known configurations to try before the sampler proposes."""
    early_stop: bool = True


class Loop:
    """Runs trials until the study has as many as it is to have."""

    def __init__(
        self,
        *,
        settings: LoopSettings,
        planner: Planner,
        recorder: StudyRecorder,
        runner: Runner,
        projection: Projection,
        interrupts: Interrupts,
        events: EventSink,
    ) -> None:
        self._settings = settings
        self._planner = planner
        self.space = self._space = planner.space
        self.device: Literal["cpu", "cuda"] = planner.topology.device
        self._recorder = recorder
        self._runner = runner
        self._projection = projection
        self._interrupts = interrupts
        self._events = events
        self._again: set[int] = set()
        self._begun = time.monotonic()
        self._done_here = 0

    def run(self) -> None:
        """Run what is missing.

        Raises:
            NothingFeasibleError: The baseline failed, or trials fail alike.
            InterruptedSearch: The user asked to stop.
            EnvironmentFault: The machine failed repeatedly, or the disk is full.
        """
        self._baseline()
        self._longer_than_before()
        while history.counted(self._contents) < self._settings.trials:
            self._pause_point()
            if self._noise_is_due():
                self.remeasure("baseline", self.baseline.number, None, "baseline again")
                continue
            if not self._next_trial():
                break

    @property
    def _contents(self) -> StudyContents:
        return self._recorder.contents()

    @property
    def baseline(self) -> TrialRecord:
        """The measured baseline."""
        found = self._contents.baseline()
        assert found is not None, "the baseline comes first"
        return found

    def bring_in(self, origin: str, config: Config) -> TrialRecord:
        """Launch a configuration that the search did not choose, as a trial that does not count.

        One that was launched already, by whomever, is not launched again.
        """
        self._pause_point()
        record = self._known(config.key)
        if record is None:
            record = self._open(origin, config)
        elif history.has_ended(record):
            return record
        self._run_trial(record, config, origin.replace(":", " "))
        done = self._contents.trial(record.number)
        assert done is not None
        return done

    def _known(self, key: str) -> TrialRecord | None:
        known = [one for one in history.comparable(self._contents) if one.header.key == key]
        return min(known, key=lambda one: not history.has_ended(one), default=None)

    def remeasure(
        self,
        role: Role,
        trial: int,
        round_: int | None,
        label: str,
        *,
        comparison: int | None = None,
    ) -> Outcome:
        """Launch a trial's configuration again, as a declared re-measurement."""
        self._pause_point()
        record = self._contents.trial(trial)
        assert record is not None
        number = self._recorder.next_number("remeasurement")
        self._recorder.open_remeasurement(
            RemeasurementHeader(
                number=number,
                role=role,
                trial=trial,
                round=round_,
                comparison=comparison,
                context=self._contents.study.context,
                created_at=self._recorder.now(),
            )
        )
        outcome = self._runner.run(
            Launch(
                purpose="remeasurement",
                number=number,
                first_attempt=0,
                config=self._config_again(record),
                params=record.header.params,
                label=label,
                reference=self._reference(),
                racing=None,
                whole_window=round_ is not None,
            )
        )
        self._after(outcome)
        return outcome

    def _baseline(self) -> None:
        config = self._space.baseline_config()
        record = self._contents.baseline()
        if record is not None and record.header.key != config.key:
            record = None  # the file's baseline changed: the new one is measured
        if record is not None and record.state == "complete":
            return
        self._pause_point()
        if record is None:
            record = self._open("baseline", config)
        self._run_trial(record, config, "baseline")
        outcome = self._contents.trial(record.number)
        assert outcome is not None
        failure = history.failure_of(outcome)
        if failure is None:
            return
        self._recorder.record_verdict(
            Verdict(
                verdict="none_feasible",
                best_trial=None,
                reason=f"the baseline failed: {failure.reason}",
                context=self._contents.study.context,
                space_fingerprint=self._contents.study.space_fingerprint,
                at=self._recorder.now(),
            )
        )
        raise NothingFeasibleError(
            f"the baseline (trial {record.number}) failed with {failure.kind}: {failure.reason}",
            hint=failures_table(self._contents),
        )

    def _longer_than_before(self) -> None:
        """Launch again what an earlier search gave less time than it would get now."""
        limit_s = self._space.search.max_trial_time_s
        for record in history.cut_short(self._contents, limit_s):
            self._pause_point()
            text = f"trial {record.number} passed its time limit; the limit is {limit_s:g} s now"
            self._events(Message(text=text))
            label = record.header.origin.replace(":", " ")
            self._run_trial(record, self._config_again(record), label)

    def _next_trial(self) -> bool:
        """Run one trial: what was cut off, else an anchor, else a proposal. False: none is left."""
        for record in history.unfinished(self._contents):
            if record.number not in self._again:
                self._again.add(record.number)
                self._run_trial(
                    record, self._config_again(record), record.header.origin.replace(":", " ")
                )
                return True
        launched = history.launched_keys(self._contents)
        for anchor in self._settings.anchors:
            if anchor.config.key not in launched and self._refusal(anchor.config) is None:
                record = self._open(f"anchor:{anchor.name}", anchor.config)
                self._run_trial(record, anchor.config, f"anchor {anchor.name}")
                return True
        return self._next_proposal()

    def _next_proposal(self) -> bool:
        proposal = propose(
            self._space,
            history.observations(self._contents, self._space),
            reject=self._refusal,
            avoid=lambda config: history.is_probably_too_large(self._contents, config),
            number=self._recorder.next_number("trial"),
            start_up=START_UP_TRIALS,
        )
        if isinstance(proposal, Exhausted):
            done = history.counted(self._contents)
            how = "every configuration of the space is launched or ruled out"
            if not proposal.listed:
                how = "no configuration is found that is new and keeps the constraints"
            why = "".join(f"\n  {n} × {reason}" for reason, n in sorted(proposal.rejected.items()))
            self._events(Message(text=f"the search ends after {done} trials: {how}{why}"))
            return False
        record = self._open("proposal", proposal.config)
        self._run_trial(record, proposal.config, "proposal")
        return True

    def _refusal(self, config: Config) -> str | None:
        """Why a configuration costs no launch; ``None`` if it is worth one."""
        if config.key in history.launched_keys(self._contents):
            return "already launched"
        if history.is_too_large(self._contents, config, self._planner.micro_steps):
            return "needs at least the memory of one that did not fit"
        known = history.is_known_to_fail(self._contents, config)
        if known is not None:
            return known
        refusal = self._planner.refusal(config)
        return None if refusal is None else refusal.reason

    def _open(self, origin: str, config: Config) -> TrialRecord:
        number = self._recorder.next_number("trial")
        study = self._contents.study
        self._recorder.open_trial(
            TrialHeader(
                number=number,
                origin=origin,
                params=self._space.params_of(config),
                config=dict(config.values),
                backend=config.backend,
                key=config.key,
                context=study.context,
                space_fingerprint=study.space_fingerprint,
                inside_space=self._space.assignment_of(config) is not None
                and self._space.violated(config) is None,
                created_at=self._recorder.now(),
            )
        )
        record = self._contents.trial(number)
        assert record is not None
        return record

    def _run_trial(self, record: TrialRecord, config: Config, label: str) -> None:
        is_baseline = label == "baseline"
        self._projection.start(record)
        outcome = self._runner.run(
            Launch(
                purpose="trial",
                number=record.number,
                first_attempt=record.next_attempt,
                config=config,
                params=record.header.params,
                label=label,
                reference=Reference() if is_baseline else self._reference(),
                racing=None if is_baseline else self._racing(record),
            )
        )
        done = self._contents.trial(record.number)
        assert done is not None
        self._projection.finish(done, self._log_of(done))
        self._done_here += 1
        self._events(self._progress())
        self._after(outcome)
        if not is_baseline:
            self._stop_if_hopeless()

    def _log_of(self, record: TrialRecord) -> str:
        folder = self._contents.last_attempt("trial", record.number)
        failure = history.failure_of(record)
        rank = failure.rank if failure is not None and failure.rank is not None else 0
        return "" if folder is None else str(folder.log_file(rank))

    def _after(self, outcome: Outcome) -> None:
        """Stop when the launch ended for a reason of the machine."""
        failure = outcome.failure
        if failure is None or POLICIES[failure.kind].counts:
            return
        if failure.kind == "interrupted" or self._interrupts.requested:
            raise InterruptedSearch("the search was stopped")
        raise EnvironmentFault(
            f"the machine failed {POLICIES[failure.kind].max_retries + 1} times: {failure.reason}",
            hint=f"{next_step(failure.kind, failure.reason)}; then the same command resumes",
        )

    def _stop_if_hopeless(self) -> None:
        """Stop when trials fail alike: it would go on so to the end."""
        found = giving_up.enough(self._contents)
        if found is None:
            return
        count, failure = found
        verb = "crashed" if failure.kind == "crash" else f"failed with {failure.kind},"
        raise NothingFeasibleError(
            f"{count} trials {verb} alike: {failure.reason}", hint=failures_table(self._contents)
        )

    def _progress(self) -> Progress:
        contents = self._contents
        counted = history.counted(contents)
        ranked = history.ranking(contents)
        base = contents.baseline()
        left: float | None = None
        if self._done_here:
            each = (time.monotonic() - self._begun) / self._done_here
            left = each * max(0, self._settings.trials - counted)
        return Progress(
            counted=counted,
            trials=self._settings.trials,
            baseline_trial=base.number if base else None,
            baseline_s_per_it=history.s_per_it(contents, base.number) if base else None,
            best_trial=ranked[0].number if ranked else None,
            best_s_per_it=history.s_per_it(contents, ranked[0].number) if ranked else None,
            seconds_left=left,
        )

    def _pause_point(self) -> None:
        if self._interrupts.requested:
            raise InterruptedSearch("the search was stopped")
        disk.check_room(self._recorder.folder.path)

    def _noise_is_due(self) -> bool:
        contents = self._contents
        done = sum(
            again.header.role == "baseline"
            and again.header.round is None
            and again.header.context == contents.study.context
            and again.state not in ("interrupted", "running")
            for again in contents.remeasurements
        )
        return done < history.counted(contents) // NOISE_EVERY

    def _reference(self) -> Reference:
        measured = self.baseline.measurement
        assert measured is not None
        return Reference(
            checks=measured.checks,
            implementations=measured.implementations,
            losses=measured.losses,
            grad_norms=measured.grad_norms,
        )

    def _racing(self, record: TrialRecord) -> Racing | None:
        ranked = history.ranking(self._contents)
        if not self._settings.early_stop or not ranked or not history.is_of_search(record):
            return None
        best = history.s_per_it(self._contents, ranked[0].number)
        if best is None:
            return None
        return Racing(best_s_per_it=best, noise_share=noise.for_racing(self._contents, self.device))

    def _config_again(self, record: TrialRecord) -> Config:
        """The recorded configuration as the present space resolves it."""
        baseline = self._space.baseline_config()
        if record.header.key == baseline.key:
            return baseline
        assignment: dict[str, Any] | None = self._space.assignment_of(history.config_of(record))
        return history.config_of(record) if assignment is None else self._space.resolve(assignment)
