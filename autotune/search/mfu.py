"""What the model FLOP utilisation is computed from.

MFU is the share of the devices' peak that the model FLOPs of an iteration would take in the time
that it took: ``FLOPs / (s/it · peak)`` (Chowdhery et al. 2022, PaLM, appendix B). What counts as
model FLOPs is said at ``autotune.models.qwen3_shape.flops_per_token``.
"""

from __future__ import annotations

from typing import Final

from autotune.contract.plan import CommandWorkload, Topology, Workload
from autotune.search.devices import Devices
from autotune.search.launching import Flops
from autotune.search.workload import flops_per_iteration

PEAK_FLOPS: Final[tuple[tuple[str, dict[str, float]], ...]] = (
    ("H200 NVL", {"bf16": 835e12, "fp32": 60e12}),
    ("H200", {"bf16": 989e12, "fp32": 67e12}),
    ("GH200", {"bf16": 989e12, "fp32": 67e12}),
    ("H100 PCIe", {"bf16": 756e12, "fp32": 51e12}),
    ("H100 NVL", {"bf16": 835e12, "fp32": 60e12}),
    ("H100", {"bf16": 989e12, "fp32": 67e12}),
    ("H800 PCIe", {"bf16": 756e12, "fp32": 51e12}),
    ("H800", {"bf16": 989e12, "fp32": 67e12}),
    ("A100", {"bf16": 312e12, "fp32": 19.5e12}),
    ("A800", {"bf16": 312e12, "fp32": 19.5e12}),
    ("L40S", {"bf16": 362e12, "fp32": 91.6e12}),
    ("A40", {"bf16": 150e12, "fp32": 37.4e12}),
    ("A10", {"bf16": 125e12, "fp32": 31.2e12}),
    ("B200", {"bf16": 2250e12, "fp32": 75e12}),
    ("GB200", {"bf16": 2500e12, "fp32": 80e12}),
)
"""Words of the device's name to its dense peak (FLOP/s) by number format; the first whose words are
all there. From NVIDIA's data sheets ("NVIDIA H200 Tensor Core GPU", "NVIDIA Blackwell
architecture", and those of the others), where bf16 is given with sparsity for Hopper and
Blackwell: half of it is what dense products can reach (H200: 1,979 → 989 TFLOP/s). A device that
is not named has no MFU. fp32 is that of the CUDA cores: TF32 is off unless a program asks for it.
"""


def flops_of(workload: CommandWorkload | Workload, topology: Topology, devices: Devices) -> Flops:
    """Return the workload's FLOPs and the peak of its devices; unknown on a CPU or of a command."""
    if topology.device == "cpu" or isinstance(workload, CommandWorkload):
        return Flops(per_iteration=None, per_s_at_peak=None)
    peaks = [
        _peak(device.name, workload.precision.compute)
        for device in devices.found[: topology.processes]
    ]
    known = [peak for peak in peaks if peak is not None]
    total = sum(known) if len(known) == topology.processes else None
    return Flops(per_iteration=flops_per_iteration(workload), per_s_at_peak=total)


def _peak(name: str, precision: str) -> float | None:
    words = set(name.replace("-", " ").split())
    for model, by_format in PEAK_FLOPS:
        if words.issuperset(model.split()):
            return by_format[precision]
    return None
