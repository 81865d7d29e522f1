"""The fork servers of one launcher: started when asked for, replaced when they are lost."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Literal

from autotune.contract import processes
from autotune.contract.folder import StudyFolder
from autotune.errors import EnvironmentFault
from autotune.launchers import caches, environment
from autotune.launchers.caches import CacheSlot
from autotune.launchers.server_process import PACKAGE_ROOT, ServerProcess

MAX_RESTARTS: Final = 2
"""Servers that may be lost one after another, with no trial ended in between."""
MAX_WARM: Final = 3
"""Warm servers that are kept at once (about 400 MiB each); the one used longest ago goes."""


@dataclasses.dataclass(frozen=True)
class ServerKind:
    """What tells servers apart. Trials that agree in it share one."""

    warm: bool
    """Whether ranks are forked from a process that has imported everything."""
    settings: tuple[tuple[str, str], ...] = ()
    """Variables that libraries read while they are imported, as the trial wants them."""

    @property
    def name(self) -> str:
        """Stem of its log's name."""
        if not self.warm:
            return "server-cold"
        if not self.settings:
            return "server"
        digest = hashlib.sha256(repr(self.settings).encode()).hexdigest()
        return f"server-{digest[:8]}"


COLD: Final = ServerKind(warm=False)


class TooManyLostError(Exception):
    """Server after server of one kind was lost."""


class ServerPool:
    """Not thread-safe.

    Args:
        study: Its folder gets the servers' logs; caches lie beside it.
        device: ``cpu`` keeps every process off the machine's accelerators.
        arguments: What a server of a kind is started with.
        start_limit_s: How long one may take to start.
    """

    def __init__(
        self,
        study: StudyFolder,
        *,
        device: Literal["cpu", "cuda"],
        arguments: Callable[[ServerKind], list[str]],
        start_limit_s: float,
    ) -> None:
        self._study = study
        self._device = device
        self._arguments = arguments
        self._start_limit_s = start_limit_s
        self._servers: dict[ServerKind, ServerProcess] = {}
        self._slots: dict[tuple[tuple[str, str], ...], CacheSlot] = {}
        self._lost: dict[ServerKind, int] = {}

    def running(self, kind: ServerKind) -> ServerProcess | None:
        """Return the kind's server, if it has one."""
        return self._servers.get(kind)

    def get(self, kind: ServerKind, *, busy: Collection[ServerProcess]) -> ServerProcess:
        """Return a server of ``kind``; start it if need be.

        Args:
            kind: Which.
            busy: Servers that have trials, which must not be closed to make room.

        Raises:
            EnvironmentFault: It does not start, or a package that its trials need is broken.
            TooManyLostError: It was lost too often.
        """
        server = self._servers.pop(kind, None)
        if server is None:
            if self._lost.get(kind, 0) > MAX_RESTARTS:
                raise TooManyLostError
            self._make_room(kind, busy)
            server = self._start(kind)
        self._servers[kind] = server  # at the end: the one used last
        return server

    def slot(self, settings: tuple[tuple[str, str], ...]) -> CacheSlot:
        """Return the caches for trials with these settings."""
        if settings not in self._slots:
            self._slots[settings] = caches.take(self._study.path.parent, dict(settings))
        return self._slots[settings]

    def log(self, kind: ServerKind) -> Path:
        """Where a kind's servers write."""
        return self._study.path / f"{kind.name}.log"

    def lose(self, server: ServerProcess) -> None:
        """Give a server up, by SIGKILL; the kernel ends its ranks with it."""
        server.kill()
        for kind, known in list(self._servers.items()):
            if known is server:
                del self._servers[kind]
                self._lost[kind] = self._lost.get(kind, 0) + 1

    def retire(self, server: ServerProcess) -> None:
        """Close a server that may be unsound; the next trial gets a fresh one."""
        for kind, known in list(self._servers.items()):
            if known is server:
                del self._servers[kind]
        server.close()

    def trial_ended(self, kind: ServerKind) -> None:
        """Note that a server of this kind served a trial to its end."""
        self._lost.pop(kind, None)

    def fault(self, kind: ServerKind) -> EnvironmentFault:
        """Return the error for :class:`TooManyLostError`."""
        return EnvironmentFault(
            f"the fork server died {self._lost.get(kind, 0)} times in a row",
            hint=f"its log: {self.log(kind)}; the kernel's log may name an OOM kill",
        )

    def close(self) -> None:
        """End all servers and let the caches go."""
        for server in list(self._servers.values()):
            server.close()
        self._servers.clear()
        for slot in self._slots.values():
            slot.release()
        self._slots.clear()

    def _make_room(self, kind: ServerKind, busy: Collection[ServerProcess]) -> None:
        warm = [known for known in self._servers if known.warm]
        idle = [known for known in warm if self._servers[known] not in busy]
        if kind.warm and len(warm) >= MAX_WARM and idle:
            self._servers.pop(idle[0]).close()

    def _start(self, kind: ServerKind) -> ServerProcess:
        server = ServerProcess(
            log=self.log(kind),
            environment=self._environment(kind),
            arguments=self._arguments(kind),
        )
        server.start(self._start_limit_s)
        broken = None if server.ready is None else server.ready.broken
        if broken is not None:
            server.close()
            raise EnvironmentFault(
                f"a package that each trial needs cannot be imported: {broken}",
                hint="repair or reinstall it in the environment that runs autotune, or take the "
                "backend that needs it out of the space file",
            )
        return server

    def _environment(self, kind: ServerKind) -> Mapping[str, str]:
        made = environment.server_environment(
            os.environ,
            device=self._device,
            package_root=PACKAGE_ROOT,
            mark=processes.mark_of(self._study.path),
            settings=dict(kind.settings),
        )
        return self.slot(kind.settings).for_server(made)
