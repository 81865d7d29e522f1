"""Was the device slowed down while it was timed? Read from the driver; nothing is ever set.

NVML keeps for some policies how long they have held the clocks down (``nvml.h``,
``nvmlDeviceGetViolationStatus``): the share of the timed window is exact. Slow-downs by the
hardware have no such counter: their flags (``nvmlDeviceGetCurrentClocksEventReasons``) are looked
at once a cycle, while the device is still busy.
"""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from autotune.contract import nvml

if TYPE_CHECKING:
    import torch

POLICIES: Final[dict[int, str]] = {0: "power", 1: "thermal", 3: "board", 5: "reliability"}
"""``nvmlPerfPolicyType_t`` to our word; waiting for work (4) and sync boost (2) are left out."""
FLAGS: Final[dict[int, str]] = {
    0x08: "hardware",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
}
"""Bits of the clocks' event reasons that mean a slow-down beyond the power cap."""
LEAST_SHARE: Final = 0.001
"""A smaller share of the window is nothing to note."""


class ClockWatch(Protocol):
    """Looks at one device during the timed window."""

    def begin(self) -> None:
        """The window begins."""

    def look(self) -> None:
        """Called at each cycle's end, before the device is waited for."""

    def end(self) -> dict[str, float]:
        """The window has ended: reason to the share of it, or of the looks, that it held."""


class NoWatch:
    """There is no device, or its driver does not tell."""

    def begin(self) -> None:
        """Nothing."""

    def look(self) -> None:
        """Nothing."""

    def end(self) -> dict[str, float]:
        return {}


class _Violation(ctypes.Structure):
    _fields_ = (("reference_us", ctypes.c_ulonglong), ("violation_ns", ctypes.c_ulonglong))


class NvmlWatch:
    """Reads one GPU.

    Args:
        library: NVML, initialised.
        handle: The device in it.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._began_s = 0.0
        self._held_ns: dict[int, int] = {}
        self._looks = 0
        self._seen: dict[int, int] = {}

    def begin(self) -> None:
        self._looks, self._seen = 0, {}
        self._held_ns = self._counters()
        self._began_s = time.perf_counter()

    def look(self) -> None:
        value = ctypes.c_ulonglong()
        if self._reasons(ctypes.byref(value)) != nvml.SUCCESS:
            return
        self._looks += 1
        for bit in FLAGS:
            if value.value & bit:
                self._seen[bit] = self._seen.get(bit, 0) + 1

    def end(self) -> dict[str, float]:
        window_ns = (time.perf_counter() - self._began_s) * 1e9
        after = self._counters()
        shares = {
            POLICIES[policy]: min(1.0, (after[policy] - before) / window_ns)
            for policy, before in self._held_ns.items()
            if policy in after and window_ns > 0
        }
        shares |= {FLAGS[bit]: count / self._looks for bit, count in self._seen.items()}
        return {reason: share for reason, share in shares.items() if share >= LEAST_SHARE}

    def _counters(self) -> dict[int, int]:
        """Nanoseconds that each policy has held the clocks down; those that the device keeps."""
        found: dict[int, int] = {}
        call: Any = getattr(self._library, "nvmlDeviceGetViolationStatus", None)
        for policy in POLICIES if call is not None else ():
            value = _Violation()
            if call(self._handle, policy, ctypes.byref(value)) == nvml.SUCCESS:
                found[policy] = int(value.violation_ns)
        return found

    def _reasons(self, value: Any) -> int:
        # The same function under its name before driver 535.
        for name in ("nvmlDeviceGetCurrentClocksEventReasons",
                     "nvmlDeviceGetCurrentClocksThrottleReasons"):  # fmt: skip
            call = getattr(self._library, name, None)
            if call is not None:
                return int(call(self._handle, value))
        return -1


def watch_for(device: torch.device) -> ClockWatch:
    """Return the watch of the rank's device; one that sees nothing where the driver is no help."""
    if device.type != "cuda":
        return NoWatch()
    library = nvml.opened()
    if library is None:
        return NoWatch()
    handle = ctypes.c_void_p()
    uuid = f"GPU-{_uuid(device)}".encode()
    if library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)) != nvml.SUCCESS:
        return NoWatch()  # a slice of a GPU has no clocks of its own
    return NvmlWatch(library, handle)


def _uuid(device: torch.device) -> str:
    import torch

    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
