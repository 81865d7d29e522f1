"""What a launcher and a fork server say to each other: one JSON object a line.

The launcher creates a socket pair and hands one end to the server by descriptor number. Standard
output is no channel, because libraries print. The end of the stream is a message too: the
coordinator is gone, by whatever means, so the server kills every trial and ends.

Commands (launcher to server)::

    {"type": "run", "job": …, "folder": …, "processes": 2, "environment": {…}, "entry": …,
     "total_s": 300.0, "phase_s": {"build": 60.0}}
    {"type": "kill", "job": …, "signal": 15}
    {"type": "ping", "number": 3}
    {"type": "quit"}

Events (server to launcher)::

    {"type": "ready", "pid": …, "import_s": …, "rss_bytes": …, "modules": 3, "missing": {…}}
    {"type": "started", "job": …, "pids": […], "pgid": …}
    {"type": "stopping", "job": …, "reason": "hang", "at": …, "rank": 1, "limit_s": 240.0}
    {"type": "exited", "job": …, "rank": 0, "code": 0, "signal": null, "at": …}
    {"type": "ended", "job": …, "stopped_for": null, "at_s": …}
    {"type": "error", "job": …, "message": …}
    {"type": "pong", "number": 3}

Lines are read strictly: an unknown type, key or a value of another type is a
:class:`~autotune.errors.RecordError`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final, Literal, TypeVar

from autotune.contract import codec
from autotune.errors import RecordError

StopReason = Literal["timeout", "hang", "peer_failed", "cancelled", "server_lost"]

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A longer line is refused: an environment is at most about 2 MiB."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Start the ranks of one trial."""

    job: str
    """32 hexadecimal digits; also the value of the marker variable in every rank."""
    folder: str
    """Absolute path of the attempt folder."""
    processes: int
    environment: dict[str, str]
    """The whole environment of the ranks, save for what differs from rank to rank."""
    entry: str
    """``module:function`` called with (folder, rank) in a forked rank; a module name for a cold
    server, run as ``python -m MODULE --folder FOLDER --rank RANK``."""
    total_s: float
    """Deadline of the whole trial, from this message on."""
    phase_s: dict[str, float]
    """How long a rank's heartbeat may stand still, by phase."""
    rank_folders: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables that name a folder of which each rank gets a part of its own (``…/rank-3``)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kill:
    """End a job. SIGTERM is followed by SIGKILL after a grace; SIGKILL takes effect at once."""

    job: str
    signal: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ping:
    """Ask for a sign of life."""

    number: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quit:
    """Kill every trial and end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ready:
    """All imports are done."""

    pid: int
    import_s: float
    rss_bytes: int
    modules: int
    """How many of the named modules were imported."""
    missing: dict[str, str]
    """Modules that could not be imported, and why."""
    no_fork: str | None = None
    """Why forked ranks could hang or fail: ranks must then be started cold."""
    broken: str | None = None
    """Which package that a backend needs could not be imported, and why: no trial can run."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Started:
    """All ranks of the job run."""

    job: str
    pids: tuple[int, ...]
    """By rank."""
    pgid: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopping:
    """The server begins to end the job's processes."""

    job: str
    reason: StopReason
    at: float | None = None
    """``time.time()``: ranks that end after it, by SIGTERM or SIGKILL, were ended by the server."""
    rank: int | None = None
    """The rank that did not move, for a ``hang``."""
    limit_s: float | None = None
    """The limit that was passed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exited:
    """One rank has ended. Exactly one of ``code`` and ``signal`` is set."""

    job: str
    rank: int
    code: int | None
    signal: int | None
    at: float | None = None
    """``time.time()`` when the server saw it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """Every process of the job is reaped, its stray descendants included."""

    job: str
    stopped_for: StopReason | None
    at_s: float
    """``time.monotonic()`` of the last reap; the clock is the machine's, not the process's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """The server could not do what it was asked to; type ``error`` on the wire."""

    job: str | None
    """``None`` when the server itself cannot go on."""
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pong:
    """The answer to a ping."""

    number: int


Command = Run | Kill | Ping | Quit
Event = Ready | Started | Stopping | Exited | Ended | Problem | Pong

COMMANDS: Final[dict[str, type[Command]]] = {"run": Run, "kill": Kill, "ping": Ping, "quit": Quit}
EVENTS: Final[dict[str, type[Event]]] = {
    "ready": Ready,
    "started": Started,
    "stopping": Stopping,
    "exited": Exited,
    "ended": Ended,
    "error": Problem,
    "pong": Pong,
}
_NAMES: Final = {cls: name for table in (COMMANDS, EVENTS) for name, cls in table.items()}

M = TypeVar("M")


def encode(message: Command | Event) -> bytes:
    """Return the message as one line."""
    data = {"type": _NAMES[type(message)], **codec.to_json(message)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def decode_command(line: bytes) -> Command:
    """Parse what a launcher sent.

    Raises:
        RecordError: It is no command.
    """
    return _decode(COMMANDS, line)


def decode_event(line: bytes) -> Event:
    """Parse what a server sent.

    Raises:
        RecordError: It is no event.
    """
    return _decode(EVENTS, line)


def _decode(table: dict[str, type[M]], line: bytes) -> M:
    try:
        data: Any = json.loads(line.decode("ascii"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RecordError(f"control channel: not a JSON line ({error})") from error
    if not isinstance(data, dict) or not isinstance(data.get("type"), str):
        raise RecordError("control channel: a message is an object with a 'type'")
    name = data.pop("type")
    if name not in table:
        raise RecordError(f"control channel: unknown message {name!r}")
    return codec.from_json(table[name], data, where=f"control channel: {name}")


class Lines:
    """Cuts a byte stream into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that ``data`` completes.

        Raises:
            RecordError: A line is longer than any message.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise RecordError("control channel: a line without an end")
        return lines
