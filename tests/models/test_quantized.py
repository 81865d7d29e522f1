"""Weights of four bits, by bitsandbytes' own layers, which run on a CPU too."""

import pytest
import torch
from adapted import adapters, workload
from small_qwen3 import Inputs

from autotune.backends.base import RankContext
from autotune.backends.ddp_engine import ComputeCopy
from autotune.backends.filling import fill
from autotune.models import lora, quantized
from autotune.models.family import family_of
from autotune.models.resolve import resolve_model
from autotune.models.weights import WeightSource

pytest.importorskip("peft")
bitsandbytes = pytest.importorskip("bitsandbytes")


def built():
    model = resolve_model("qwen3-tiny", load_weights=False)
    module = family_of(model.family).build(model, dtype=torch.bfloat16, kernels={})
    quantized.replace_linear_layers(module, model, compute=torch.bfloat16)
    lora.attach(module, workload(model, adapters(model)), trained=torch.float32)
    source = WeightSource.of(model, module)
    fill(module, source, RankContext(rank=0, local_rank=0, device=torch.device("cpu")))
    return model, module, source


def test_every_linear_layer_of_the_decoder_is_packed_and_near_its_weight():
    model, module, source = built()
    names = family_of(model.family).linear_layers(model.config)
    for name, (rows, columns) in names.items():
        packed = module.get_submodule(f"{name}.base_layer").weight
        assert packed.dtype == torch.uint8
        assert packed.numel() == rows * columns // 2
        assert packed.quant_state.quant_type == "nf4"
        assert packed.quant_state.nested
        values = bitsandbytes.functional.dequantize_4bit(packed.data, packed.quant_state)
        whole = source.tensor(f"{name}.base_layer.weight", (rows, columns), device="cpu")
        assert 0 < (values.float() - whole).abs().max() < 0.25 * whole.abs().max()
    rest = [p for p in module.parameters() if not p.requires_grad and p.dtype != torch.uint8]
    assert {p.dtype for p in rest} == {torch.bfloat16}


def test_only_adapters_are_trained_through_packed_weights():
    model, module, _ = built()
    copy = ComputeCopy(module, torch.bfloat16)
    logits = family_of(model.family).logits(module, Inputs(torch.arange(12)[None]))
    logits.float().square().mean().backward()
    copy.drop()
    for name, parameter in module.named_parameters():
        assert parameter.requires_grad == lora.is_adapter(name)
        assert (parameter.grad is not None) == lora.is_adapter(name)
        if ".lora_B." in name:
            assert parameter.grad.any(), name
