"""Which GPUs a rank would see, by the rules of ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import pytest

from autotune.search.devices import Device, _restrict

GPUS = tuple(
    Device(name=name, memory_bytes=1, uuid=f"GPU-{uuid}-0000")
    for name, uuid in (("H200", "aa"), ("A100", "ab"), ("L40S", "c"))
)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["H200", "A100", "L40S"]),
        ("", []),
        ("2,0", ["L40S", "H200"]),
        ("1,9,0", ["A100"]),
        ("GPU-ab,GPU-c", ["A100", "L40S"]),
        ("GPU-a", []),
        ("GPU-none", []),
    ],
)
def test_visible_devices(visible: str | None, names: list[str]) -> None:
    assert [device.name for device in _restrict(GPUS, visible)] == names
