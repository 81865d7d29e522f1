"""The user's Optuna study: what was launched, with truthful states, for dashboards to show.

It is a projection of our records: nothing reads it back, and a fault in it never costs a trial.
Times and parameters are stored as Optuna can hold them; exact integers are in our own tables.
No transaction of ours is open while Optuna writes.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import DBAPIError, IntegrityError

from autotune.contract.outcome import Outcome
from autotune.errors import EnvironmentFault, InputError
from autotune.search.events import EventSink, Message
from autotune.space.canonical import label
from autotune.space.domains import MAX_EXACT_INT
from autotune.space.model import Choices, Param
from autotune.space.search_space import SearchSpace
from autotune.store import connection
from autotune.store.database import Store
from autotune.store.records import StudyContents, TrialRecord

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

OWNER: Final = "autotune:study"
"""User attribute that marks a study as ours."""
NUMBER: Final = "trial"
"""User attribute of a trial: its number in our records."""
OPENINGS: Final = 20
OPENING_S: Final = 0.25
"""Tries to open the storage beside another program that makes its tables, and the wait between."""


class Projection:
    """Keeps the Optuna study of one search in step with the records.

    Args:
        store: Its database is Optuna's too.
        study: Name of our study, and of Optuna's.
        space: The present space.
        events: Hears when the projection cannot be kept.
    """

    def __init__(self, store: Store, study: str, space: SearchSpace, events: EventSink) -> None:
        self._url = store.url
        self._shown_url = store.shown_url
        self._is_known = store.study(study) is not None
        self._name = study
        self._space = space
        self._events = events
        self._study: optuna.Study | None = None
        self._broken = False

    def check(self) -> None:
        """Refuse a name that another program's study has. Creates nothing.

        Raises:
            InputError: The storage holds a foreign study of this name.
            EnvironmentFault: Optuna cannot use the storage.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            storage = _open_storage(self._url)
            named = [s for s in storage.get_all_studies() if s.study_name == self._name]
            # One without trials may be ours, from a search that was killed before it marked it.
            foreign = any(
                OWNER not in study.user_attrs
                and (storage.get_n_trials(study._study_id) > 0 or not self._is_known)
                for study in named
            )
        except Exception as error:
            if isinstance(error.__cause__, DBAPIError):
                raise connection.explain(error.__cause__, self._shown_url) from error
            raise EnvironmentFault(
                f"Optuna cannot use the storage: {_first_line(error)}",
                hint="choose another --storage, or upgrade it with 'optuna storage upgrade'",
            ) from error
        if foreign:
            raise InputError(
                f"the storage holds an Optuna study {self._name!r} that is not of autotune",
                hint="give this search another name with --study",
            )

    def open(self, contents: StudyContents, *, anew: bool) -> None:
        """Open or create the study and bring it to the state of the records.

        Args:
            contents: The records.
            anew: The records begin now: what the storage has under this name is of a study whose
                folder is gone.
        """
        with self._guarded():
            import optuna

            if anew:
                with contextlib.suppress(KeyError):
                    optuna.delete_study(study_name=self._name, storage=self._url)
            self._study = optuna.create_study(
                study_name=self._name,
                storage=self._url,
                direction="minimize",
                load_if_exists=True,
                sampler=optuna.samplers.RandomSampler(),
            )
            self._study.set_user_attr(OWNER, self._name)
            self._study.set_metric_names(["s_per_it"])
            self._sync(contents.trials)

    def start(self, trial: TrialRecord) -> None:
        """Show a trial as running."""
        with self._guarded():
            if self._study is not None:
                self._add(trial)

    def finish(self, trial: TrialRecord, log: str) -> None:
        """Close a trial with what came of it; ``log`` is the path to read when it failed."""
        with self._guarded():
            if self._study is None or trial.outcome is None:
                return
            shown = self._running(trial.number)
            if shown is None:
                self._add(trial)
                shown = self._running(trial.number)
            assert shown is not None
            self._close(shown, trial.outcome, log)

    def _sync(self, trials: Iterable[TrialRecord]) -> None:
        assert self._study is not None
        shown = {
            t.user_attrs.get(NUMBER): t for t in self._study.get_trials(deepcopy=False)
        }  # the last one of a number wins: earlier ones were interrupted
        for trial in trials:
            found = shown.get(trial.number)
            if found is None:
                if trial.attempts:
                    self._add(trial)
            elif found.state.is_finished():
                continue
            if trial.outcome is not None:
                running = self._running(trial.number)
                if running is not None:
                    self._close(running, trial.outcome, "")

    def _add(self, trial: TrialRecord) -> None:
        import optuna

        assert self._study is not None
        if self._running(trial.number) is not None:
            return
        header = trial.header
        distributions = self._distributions(header.params)
        attributes = {
            NUMBER: header.number,
            "origin": header.origin,
            "backend": header.backend,
            "key": header.key,
            "params": {name: _plain(value) for name, value in header.params.items()},
        }
        for known in (distributions, {}):
            frozen = optuna.trial.create_trial(
                state=optuna.trial.TrialState.RUNNING,
                params={name: _coordinate(header.params[name], one) for name, one in known.items()},
                distributions=known,
                user_attrs=attributes,
            )
            try:
                self._study.add_trial(frozen)
            except ValueError:
                # The space changed the kind of a parameter, which Optuna's storage refuses:
                # the values are then in the attribute alone.
                continue
            return

    def _running(self, number: int) -> optuna.trial.FrozenTrial | None:
        import optuna

        assert self._study is not None
        states = (optuna.trial.TrialState.RUNNING,)
        for trial in reversed(self._study.get_trials(deepcopy=False, states=states)):
            if trial.user_attrs.get(NUMBER) == number:
                return trial
        return None

    def _close(self, shown: optuna.trial.FrozenTrial, outcome: Outcome, log: str) -> None:
        import optuna

        assert self._study is not None
        trial = optuna.Trial(self._study, shown._trial_id)
        failure, measured = outcome.failure, outcome.measurement
        if failure is not None:
            trial.set_user_attr("kind", failure.kind)
            trial.set_user_attr("reason", failure.reason)
            trial.set_user_attr("log", log)
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        assert measured is not None
        trial.set_user_attr("state", outcome.state)
        if measured.tokens_per_s is not None:
            trial.set_user_attr("tokens_per_s", measured.tokens_per_s)
        trial.set_user_attr("peak_memory_bytes", measured.peak_memory.measured)
        self._study.tell(trial, measured.s_per_it)

    def _distributions(self, params: Mapping[str, Any]) -> dict[str, BaseDistribution]:
        by_name = {param.name: param for param in self._space.params}
        return {
            name: found
            for name, value in params.items()
            if name in by_name and (found := self._distribution(by_name[name], value)) is not None
        }

    def _distribution(self, param: Param, value: Any) -> BaseDistribution | None:
        """A distribution that holds the value: a baseline may lie outside the range."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        domain = param.domain
        if isinstance(domain, Choices):
            if label(value) not in domain.labels:
                return None
            return CategoricalDistribution([_category(one) for one in domain.values])
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        points = (domain.low, domain.high, value, *domain.also)
        low, high = min(points), max(points)
        # Zero beside a logarithmic range: the scale is then only for the eye, and linear.
        log = domain.log and not any(extra <= 0 for extra in domain.also) and low > 0
        if all(isinstance(p, int) for p in points):
            if not -MAX_EXACT_INT <= low <= high <= MAX_EXACT_INT:
                return None
            return IntDistribution(int(low), int(high), log=log)
        return FloatDistribution(float(low), float(high), log=log)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Report a fault once and go on: the records do not depend on this."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except Exception as error:
            if not self._broken:
                self._broken = True
                why = error.__cause__ if isinstance(error.__cause__, DBAPIError) else error
                text = f"the Optuna study for dashboards is behind: {_first_line(why)}"
                self._events(Message(text=text, level="warning"))


def _open_storage(url: str) -> optuna.storages.RDBStorage:
    """Open Optuna's storage; its tables are made if need be.

    Optuna looks which tables there are and makes the others: of two searches that do so at once one
    finds in the end that the other was faster.
    """
    import optuna

    for left in reversed(range(OPENINGS)):
        try:
            return optuna.storages.RDBStorage(url)
        except Exception as error:
            met = isinstance(error, IntegrityError) or "already exists" in str(error)
            if not met or not left:
                raise
            time.sleep(OPENING_S)
    raise AssertionError("unreachable")


def _category(value: Any) -> Any:
    """A choice as Optuna can hold it: numbers, switches and text as they are."""
    return value if isinstance(value, bool | int | float | str) else label(value)


def _coordinate(value: Any, distribution: BaseDistribution) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(distribution, CategoricalDistribution):
        return _category(value)
    return float(value) if isinstance(distribution, FloatDistribution) else int(value)


def _plain(value: Any) -> Any:
    """``value`` as JSON data that a dashboard shows unharmed: no integer beyond a float's."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > MAX_EXACT_INT:
        return str(value)
    return value


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
