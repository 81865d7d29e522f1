"""The next configuration to try: asked of an in-memory Optuna study rebuilt from our records.

The study lives for one proposal. So a proposal is a pure function of the space, the records and
the seed: a resumed search goes on exactly as the interrupted one would have, and a changed
space or another sampler needs no migration. Rebuilding costs about a millisecond a trial.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import EnvironmentFault, InputError
from autotune.search.distributions import Dimension, dimensions
from autotune.search.observations import Observation, Told, told
from autotune.space.model import Config
from autotune.space.search_space import SearchSpace

if TYPE_CHECKING:
    import optuna

BACKEND: Final = "backend"
"""Name of the choice among several backends, in assignments and in the sampler's study."""
START_UP_TRIALS: Final = 4
"""Observations before the sampler's model is used: baseline and anchors are this many."""
MAX_ASKS: Final = 24
"""Proposals of the sampler that may be rejected before one is drawn from what is left."""
MAX_DRAWS: Final = 2000
"""Random draws before a space too large to list is given up as exhausted."""
MAX_LISTED: Final = 4096
"""Largest space (product of all parameters' values) that is listed whole."""
CARELESS_EVERY: Final = 8
"""Every so many trials what will probably fail is launched if the sampler asks for it."""
_CONSTRAINT: Final = "feasible"

Reject = Callable[[Config], str | None]
"""Why a configuration must not be launched, in words; ``None`` if it may be."""
Avoid = Callable[[Config], bool]
"""Whether a configuration will probably fail."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
    """A configuration to launch."""

    assignment: dict[str, Any]
    config: Config
    model_based: bool
    """Drawn from the sampler's model, not at random."""
    rejected: dict[str, int]
    """Reasons of rejected proposals before it, with their number."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exhausted:
    """No configuration is left to launch."""

    listed: bool
    """Whether every configuration of the space was looked at."""
    rejected: dict[str, int]


def sampler_name(space: SearchSpace) -> str:
    """The sampler that ``search.sampler`` means.

    Raises:
        InputError: Unknown name.
        EnvironmentFault: ``gp`` without its packages.
    """
    name = space.search.sampler
    if name in ("auto", "tpe"):
        return "tpe"
    if name == "gp" and importlib.util.find_spec("scipy") is None:
        raise EnvironmentFault(
            "search.sampler: gp needs the package scipy, which is not installed",
            hint="pip install 'scipy>=1.11', or take the default with --set search.sampler=auto",
        )
    if name not in ("gp", "random"):
        raise InputError(f"unknown sampler {name!r}", hint="known: auto, tpe, gp, random")
    return name


def propose(
    space: SearchSpace,
    observations: Sequence[Observation],
    *,
    reject: Reject,
    avoid: Avoid,
    number: int,
    start_up: int = START_UP_TRIALS,
) -> Proposal | Exhausted:
    """Return the configuration to launch as trial ``number``.

    Args:
        space: The space, bound to its topology.
        observations: Launched configurations inside the space that teach.
        reject: Tells duplicates and configurations that are known not to run.
        avoid: Tells configurations that will probably fail. Seven of eight times they are
            passed over for as long as the sampler has another idea.
        number: The trial's number; with ``search.seed`` it seeds the draw.
        start_up: Observations before the model is used.
    """
    rejected: dict[str, int] = {}
    seed = _seed(space.search.seed, number)
    model_based = sampler_name(space) != "random" and len(observations) >= start_up
    asker = _Asker(space, told(observations), seed, start_up)
    careful = number % CARELESS_EVERY != 0
    for _ in range(MAX_ASKS):
        assignment = asker.ask()
        config = _accept(space, assignment, reject, rejected)
        if config is None:
            asker.forget()
        elif careful and avoid(config):
            asker.tell_infeasible()
        else:
            return Proposal(
                assignment=assignment, config=config, model_based=model_based, rejected=rejected
            )
    rng = random.Random(seed)  # noqa: S311 - no secret
    return _from_what_is_left(space, reject, avoid if careful else _never, rng, rejected)


def draw(space: SearchSpace, rng: random.Random) -> dict[str, Any]:
    """Return a random assignment (constraints not looked at)."""
    table = dimensions(space.params)
    return _walk(space, lambda name: table[name].draw(rng), lambda: rng.choice(space.backends))


def look_around(space: SearchSpace, reject: Reject) -> Proposal | Exhausted:
    """Return any configuration that may be launched: all are looked at, or many random ones."""
    return _from_what_is_left(space, reject, _never, random.Random(0), {})  # noqa: S311 - no secret


def space_size(space: SearchSpace) -> int | None:
    """Upper bound of the number of configurations; ``None`` when it is not countable."""
    size = len(space.backends)
    for one in dimensions(space.params).values():
        if one.size is None:
            return None
        size *= one.size
    return size


def list_assignments(space: SearchSpace) -> Iterator[dict[str, Any]]:
    """Yield every assignment of a countable space, conditions obeyed, constraints not."""
    table = dimensions(space.params)

    def grow(assignment: dict[str, Any]) -> Iterator[dict[str, Any]]:
        param = _next_param(space, assignment)
        if param is None:
            yield assignment
            return
        for value in table[param].values():
            yield from grow({**assignment, param: value})

    if len(space.backends) == 1:
        yield from grow({})
    else:
        for backend in space.backends:
            yield from grow({BACKEND: backend})


def _from_what_is_left(
    space: SearchSpace,
    reject: Reject,
    avoid: Avoid,
    rng: random.Random,
    rejected: dict[str, int],
) -> Proposal | Exhausted:
    """Look at the whole space, or at many random points of it; what to avoid comes last."""
    size = space_size(space)
    listed = size is not None and size <= MAX_LISTED
    if listed:
        candidates = list(list_assignments(space))
        rng.shuffle(candidates)
    else:
        candidates = [draw(space, rng) for _ in range(MAX_DRAWS)]
    second: Proposal | None = None
    for assignment in candidates:
        config = _accept(space, assignment, reject, rejected)
        if config is None:
            continue
        found = Proposal(assignment=assignment, config=config, model_based=False, rejected=rejected)
        if not avoid(config):
            return found
        second = second or found
    return second or Exhausted(listed=listed, rejected=rejected)


def _never(config: Config) -> bool:
    """Avoid nothing."""
    del config
    return False


def _accept(
    space: SearchSpace, assignment: dict[str, Any], reject: Reject, rejected: dict[str, int]
) -> Config | None:
    config = space.resolve(assignment)
    constraint = space.violated(config)
    reason = f"constraint {constraint.text}" if constraint is not None else reject(config)
    if reason is None:
        return config
    rejected[reason] = rejected.get(reason, 0) + 1
    return None


def _next_param(space: SearchSpace, assignment: Mapping[str, Any]) -> str | None:
    """Name of the first active parameter without a value.

    Conditions name earlier parameters only, so all that decide about it have their value.
    """
    for param in space.active(assignment):
        if param.name not in assignment:
            return param.name
    return None


def _walk(
    space: SearchSpace, value_of: Callable[[str], Any], backend: Callable[[], Any]
) -> dict[str, Any]:
    assignment: dict[str, Any] = {}
    if len(space.backends) > 1:
        assignment[BACKEND] = backend()
    while (name := _next_param(space, assignment)) is not None:
        assignment[name] = value_of(name)
    return assignment


def _seed(seed: int, number: int) -> int:
    raw = hashlib.sha256(f"{seed}:{number}".encode()).digest()
    return int.from_bytes(raw[:4], "big")


class _Asker:
    """An in-memory Optuna study that holds what the records tell."""

    def __init__(
        self, space: SearchSpace, history: Sequence[Told], seed: int, start_up: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._table = dimensions(space.params)
        self._distributions = {n: d.distribution() for n, d in self._table.items()}
        if len(space.backends) > 1:
            self._distributions[BACKEND] = optuna.distributions.CategoricalDistribution(
                space.backends
            )
        self._study = optuna.create_study(
            direction="minimize", sampler=_sampler(sampler_name(space), seed, start_up)
        )
        self._study.add_trials([self._frozen(one) for one in history])
        self._worst = max((one.value for one in history), default=1.0)
        self._asked: optuna.Trial | None = None

    def ask(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            # Conditional parameters and fixed dimensions make samplers talk; nothing to act on.
            warnings.simplefilter("ignore")
            trial = self._study.ask()
            self._asked = trial
            return _walk(
                self._space,
                lambda name: self._table[name].decode(self._suggest(trial, name)),
                lambda: self._suggest(trial, BACKEND),
            )

    def forget(self) -> None:
        """Withdraw the last proposal, so that it does not stand as one that is running."""
        import optuna

        assert self._asked is not None
        self._study.tell(self._asked, state=optuna.trial.TrialState.FAIL)

    def tell_infeasible(self) -> None:
        """Tell the last proposal as a failure, so that the next one lies elsewhere."""
        assert self._asked is not None
        self._asked.set_constraint(_CONSTRAINT, 1.0)
        self._study.tell(self._asked, self._worst)

    def _suggest(self, trial: optuna.Trial, name: str) -> Any:
        import optuna

        distribution = self._distributions[name]
        if isinstance(distribution, optuna.distributions.CategoricalDistribution):
            return trial.suggest_categorical(name, distribution.choices)
        if isinstance(distribution, optuna.distributions.IntDistribution):
            return trial.suggest_int(
                name,
                distribution.low,
                distribution.high,
                step=distribution.step,
                log=distribution.log,
            )
        assert isinstance(distribution, optuna.distributions.FloatDistribution)
        return trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log)

    def _frozen(self, one: Told) -> optuna.trial.FrozenTrial:
        import optuna

        coordinates = {
            name: value if name == BACKEND else self._encode(name, value)
            for name, value in one.assignment.items()
        }
        return optuna.trial.create_trial(
            params=coordinates,
            distributions={name: self._distributions[name] for name in coordinates},
            value=one.value,
            constraints={_CONSTRAINT: one.constraint},
        )

    def _encode(self, name: str, value: Any) -> Any:
        dimension: Dimension = self._table[name]
        return dimension.encode(value)


def _sampler(name: str, seed: int, start_up: int) -> optuna.samplers.BaseSampler:
    import optuna

    if name == "random":
        return optuna.samplers.RandomSampler(seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        if name == "gp":
            import torch

            # Matrices of a few dozen rows: threads cost here four times what they bring.
            torch.set_num_threads(1)
            return optuna.samplers.GPSampler(
                seed=seed, n_startup_trials=start_up, deterministic_objective=False
            )
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=start_up, multivariate=True, group=True
        )
