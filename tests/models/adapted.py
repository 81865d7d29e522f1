"""Models with adapters beside frozen weights."""

import torch

from autotune.contract.plan import Lora, Model, Optimizer, Precision, Samples, Workload
from autotune.models import lora
from autotune.models.family import family_of
from autotune.models.weights import WeightSource, rebuild_buffers


def adapters(model: Model, *, rank: int = 4, alpha: float = 8.0, targets=None) -> Lora:
    family = family_of(model.family)
    return lora.resolve(family, model.config, rank=rank, alpha=alpha, targets=targets)


def workload(model: Model, adapters: Lora | None) -> Workload:
    return Workload(
        model=model,
        finetune="full" if adapters is None else "lora",
        lora=adapters,
        global_batch=1,
        samples=Samples(lengths=(8,) * 4, max_length=8, seed=0, source="ultrachat-like"),
        optimizer=Optimizer(lr=1e-3, weight_decay=0.0, gradient_clipping=1.0),
        precision=Precision(compute="fp32", master="fp32", accumulate="fp32", reduce="fp32"),
    )


def built(model: Model, adapters: Lora | None, dtype=torch.float32, trained=torch.float32):
    """The model on the meta device with its adapters."""
    module = family_of(model.family).build(model, dtype=dtype, kernels={})
    lora.attach(module, workload(model, adapters), trained=trained)
    return module


def filled(model: Model, adapters: Lora | None):
    module = built(model, adapters)
    source = WeightSource.of(model, module)
    module.to_empty(device="cpu")
    module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(source.tensor(name, parameter.shape, device="cpu"))
    rebuild_buffers(module)
    return module
