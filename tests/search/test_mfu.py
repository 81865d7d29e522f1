"""Peak rates are found by whole words of a device's name."""

from __future__ import annotations

import pytest

from autotune.search.mfu import _peak


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10", 125e12),
        ("NVIDIA A10G", None),
        ("NVIDIA H20", None),
    ],
)
def test_peak_of_a_device(name: str, peak: float | None) -> None:
    assert _peak(name, "bf16") == peak
