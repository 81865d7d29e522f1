"""Which address of this host the ranks on other nodes reach, and on which port they may meet.

Only rank 0 listens, on one address: that of the interface over which the nodes talk. It is the
first of these that there is:

1. ``AUTOTUNE_RENDEZVOUS_ADDRESS``, inherited or of the plan's own environment: an address of this
   host, a name for one, or the name of an interface, which may be the same on all nodes (``ib0``);
2. the interface that ``NCCL_SOCKET_IFNAME`` names, on CPU ``GLOO_SOCKET_IFNAME``;
3. what this host's own name stands for, unless that is the loopback interface;
4. the interface of the default route;
5. the first other interface that is up.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import ipaddress
import random
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from autotune.contract.failures import FailureKind
from autotune.worker.failures import TrialError

VARIABLE: Final = "AUTOTUNE_RENDEZVOUS_ADDRESS"
"""Says which address rank 0 of a trial on several nodes listens on."""
TRIES: Final = 64
"""Ports that are tried before it is taken for a fault of the machine."""
LOWEST_PORT: Final = 10_000
"""Below it lie the ports of well-known services."""
OTHERS_DEFAULT: Final = 29_500
"""The port that most launchers take unasked."""

_KERNEL: Final = Path("/proc/sys/net/ipv4")
_SIOCGIFCONF: Final = 0x8912
_IFREQ: Final = struct.Struct("16s2xH4s16x")
"""``struct ifreq`` with an IPv4 address (``man 7 netdevice``): name, port, address."""
_MOST_ADDRESSES: Final = 1024


class RendezvousError(TrialError):
    """The ranks did not meet: a matter of the machine, never of the configuration."""

    kind: FailureKind = "infra"


def own_address(environment: Mapping[str, str], device: str) -> str:
    """Return the address of this host that other nodes reach.

    Args:
        environment: Holds the variables above.
        device: ``cuda`` or ``cpu``: which library's variable counts.

    Raises:
        RendezvousError: What a variable names is not here, or there is no network at all.
    """
    here = [(name, ip) for name, ip in addresses() if not ipaddress.ip_address(ip).is_loopback]
    if asked := environment.get(VARIABLE):
        return _asked(asked, here)
    site = "NCCL_SOCKET_IFNAME" if device == "cuda" else "GLOO_SOCKET_IFNAME"
    if pattern := environment.get(site):
        names = chosen_interfaces(pattern, [name for name, _ in here])
        found = next((ip for name, ip in here if name in names), None)
        if found is None:
            raise RendezvousError(
                f"{site}={pattern}: this host has no such interface with a network"
            )
        return found
    by_name = _named(socket.gethostname())
    routed = _default_interface()
    for found in (
        next((ip for _, ip in here if ip in by_name), None),
        next((ip for name, ip in here if name == routed), None),
        next((ip for _, ip in here), None),
    ):
        if found is not None:
            return found
    raise RendezvousError(
        f"this host has no address that other nodes reach; set {VARIABLE} if it has one"
    )


def interface_of(address: str) -> str | None:
    """Return the interface that has an address of this host."""
    return next((name for name, ip in addresses() if ip == address), None)


def addresses() -> tuple[tuple[str, str], ...]:
    """Return this host's addresses with their interfaces: IPv4 first, then global IPv6."""
    return (*_ipv4(), *_ipv6())


def chosen_interfaces(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return which interfaces NCCL's own notation means.

    Beginnings of names, separated by commas; ``=`` before them makes them whole names, ``^``
    excludes them (NCCL, "Environment Variables", ``NCCL_SOCKET_IFNAME``).
    """
    excludes = pattern.startswith("^")
    exact = pattern.removeprefix("^").startswith("=")
    words = [word for word in pattern.removeprefix("^").removeprefix("=").split(",") if word]
    return tuple(
        name
        for name in names
        if any(name == word if exact else name.startswith(word) for word in words) != excludes
    )


def listen(host: str, backlog: int) -> socket.socket:
    """Bind a port that the kernel gives to nobody by itself, and listen on it.

    A port in the range for outgoing connections (``ip_local_port_range``) may be in use by one of
    them at any moment, also on a host where a firewall lets nothing else through.

    Raises:
        RendezvousError: No port can be had on this address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = "every port is one that the kernel gives away"
    for port in candidates():
        try:
            return socket.create_server((host, port), family=family, backlog=backlog)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise RendezvousError(
                    f"{host} is no address of this host; {VARIABLE} says another"
                ) from error
            reason = f"port {port}: {error.strerror or error}"
    raise RendezvousError(f"no port could be had on {host} for the ranks to meet ({reason})")


def candidates() -> list[int]:
    """Return ports to try, in random order: two trials that begin at once try different ones."""
    first, last = _numbers(_KERNEL / "ip_local_port_range", (32_768, 60_999))
    kept = set(_reserved(_KERNEL / "ip_local_reserved_ports"))
    usable = [
        port
        for port in range(LOWEST_PORT, 2**16)
        if not first <= port <= last and port not in kept and port != OTHERS_DEFAULT
    ]
    # Not the seeded generator: it is the same in every trial of a study.
    return random.SystemRandom().sample(usable, min(TRIES, len(usable)))


def _asked(asked: str, here: Sequence[tuple[str, str]]) -> str:
    for name, ip in here:
        if asked in (name, ip):
            return ip
    meant = _named(asked)
    for _, ip in here:
        if ip in meant:
            return ip
    known = ", ".join(f"{name} {ip}" for name, ip in here) or "none"
    raise RendezvousError(f"{VARIABLE}={asked}: this host has no such address (it has: {known})")


def _named(host: str) -> frozenset[str]:
    with contextlib.suppress(OSError, UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return frozenset(str(info[4][0]) for info in found)
    return frozenset()


def _default_interface() -> str | None:
    """The interface of the IPv4 default route with the lowest metric."""
    found: list[tuple[int, str]] = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/net/route").read_text().splitlines()[1:]:
            name, destination, *rest = line.split()
            if destination == "00000000" and rest[5] == "00000000":
                found.append((int(rest[4]), name))
    return min(found)[1] if found else None


def _ipv4() -> Iterator[tuple[str, str]]:
    space = array.array("B", bytes(_IFREQ.size * _MOST_ADDRESSES))
    where, _ = space.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("iL", len(space), where)
        length = struct.unpack("iL", fcntl.ioctl(any_socket, _SIOCGIFCONF, request))[0]
    for name, _, raw in _IFREQ.iter_unpack(space.tobytes()[:length]):
        # An additional address of an interface may carry a label: eth0:1.
        yield name.partition(b"\0")[0].decode().partition(":")[0], socket.inet_ntoa(raw)


def _ipv6() -> Iterator[tuple[str, str]]:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            address, _, _, scope, _, name = line.split()
            if scope == "00":
                yield name, str(ipaddress.IPv6Address(bytes.fromhex(address)))


def _numbers(path: Path, default: tuple[int, int]) -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError):
        first, last = path.read_text().split()
        return int(first), int(last)
    return default


def _reserved(path: Path) -> Iterator[int]:
    """Ports that the host's owner keeps for programs of their own: ``8080,30000-32767``."""
    with contextlib.suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            if first:
                yield from range(int(first), int(last or first) + 1)
