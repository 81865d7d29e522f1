"""The measured kernels as code: no engine's file can say them, for they are the model's.

A companion ``STEM_kernels.py`` is written where a trial ran with another kernel than the library
takes by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from autotune.contract.plan import CommandWorkload, Plan
from autotune.knobs.kernels import COMPILED_VARIANTS, KNOBS, OWNER

_OPTIMIZER: Final = "adamw"
"""The knob of the optimizer's step, which every target's own file or constants say."""
_BY_PACKAGE: Final = ("linear_attention", "convolution")
"""Knobs whose kernels the library binds by itself where their package is installed."""
_OWN: Final = ("convolution", "fla")
"""A kernel of such a package that the library does not take by itself."""
_SWITCHES: Final = {"norm": "rms_norm", "rope": "rope", "mlp": "swiglu"}
"""Knob to the argument of Liger's function."""
_LIGER: Final = "liger"
_REGISTERED: Final = {"hub_flash_attention_2": "kernels-community/flash-attn2"}

_HEAD: Final = '''"""The kernels of {about}.

ATTN_IMPLEMENTATION goes to from_pretrained(..., attn_implementation=ATTN_IMPLEMENTATION); then
``apply(model)`` comes before the model is sharded or wrapped.
"""

{imports}ATTN_IMPLEMENTATION = {attention!r}


def apply(model):
    """Give a transformers model the measured kernels; returns it."""
{body}    return model
'''
_VARLEN: Final = """
AttentionInterface.register(ATTN_IMPLEMENTATION, varlen_attention_forward)
"""
_COMPILE: Final = """\
    # Past the limit dynamo would run layers as they are, without a word.
    torch._dynamo.config.recompile_limit = max({variants}, torch._dynamo.config.recompile_limit)
    for layer in model.get_decoder().layers:
        forward = types.MethodType(_forward, layer)
        layer.forward = torch.compile(forward, dynamic={dynamic})
"""
_FORWARD: Final = """

def _forward(layer, *args, **named):
    # FSDP2 gives the layer another class, and only that one's forward checkpoints activations.
    return type(layer).forward(layer, *args, **named)
"""


def changed(plan: Plan) -> dict[str, Any]:
    """Return the kernels that are not the library's own, bare knob name to choice."""
    if isinstance(plan.workload, CommandWorkload):
        return {}
    defaults = {knob.name: knob.default for knob in KNOBS}
    return {
        name: value
        for name, value in plan.kernels.items()
        if name in defaults
        and value != defaults[name]
        and name != _OPTIMIZER
        and (name not in _BY_PACKAGE or (name, value) == _OWN)
    }


def module_name(file_name: str) -> str:
    """Name of the companion beside ``file_name``, as an import has it."""
    stem = re.sub(r"\W", "_", Path(file_name).stem, flags=re.ASCII)
    return f"{'_' if stem[:1].isdigit() else ''}{stem}_kernels"


def files(plan: Plan, file_name: str, about: str) -> dict[str, str]:
    """Return the companion, name to text; nothing where every kernel is the library's own.

    Args:
        plan: The measured plan.
        file_name: Of the export that it stands beside.
        about: Where it comes from.
    """
    kernels = changed(plan)
    if not kernels:
        return {}
    plain = re.sub(r"[^A-Za-z0-9 ._'-]", "_", about)
    return {f"{module_name(file_name)}.py": _code(plan, kernels, plain)}


def notes(plan: Plan, file_name: str) -> tuple[str, ...]:
    """Return what the user has to do to have the measured kernels."""
    kernels = changed(plan)
    if not kernels:
        return _by_package(plan)
    said = ", ".join(f"{OWNER}.{name}={value}" for name, value in kernels.items())
    module = module_name(file_name)
    found = [
        f"kernels are the model's and cannot be said in this file ({said}): 'from {module} import "
        "ATTN_IMPLEMENTATION, apply', pass the first to from_pretrained as attn_implementation, "
        "and call apply(model) before the model is sharded or wrapped",
        *_by_package(plan),
    ]
    if kernels.get("loss") == "chunked":
        found.append(
            f"the chunked loss is autotune's own, so {module} needs the package: after "
            "apply(model), model(..., labels=labels) returns its mean, and no logits"
        )
    if kernels.get("loss") == _LIGER:
        found.append(
            "Liger's fused loss was measured with accum_dtype=torch.float32; its own default sums "
            "the head's gradient in the weights' format"
        )
    return tuple(found)


def _by_package(plan: Plan) -> tuple[str, ...]:
    if isinstance(plan.workload, CommandWorkload):
        return ()
    if "linear_attention" not in plan.training.model.config.get("layer_types", ()):
        return ()
    chosen = {name: plan.kernels.get(name, "torch") for name in _BY_PACKAGE}
    # torch as well: the library would take a package that the production machine has.
    said = [f"{OWNER}.{name}={value}" for name, value in chosen.items() if (name, value) != _OWN]
    if not said:
        return ()
    return (
        f"measured with {', '.join(said)}: transformers takes flash-linear-attention and "
        "causal-conv1d where they are installed, and torch's functions where they are not",
    )


def _code(plan: Plan, kernels: Mapping[str, Any], about: str) -> str:
    imports: list[str] = []
    body = after = ""
    if kernels.get("compile", "none") != "none":
        imports.append("import types\n\nimport torch\nimport torch._dynamo")
        static = plan.cut.distinct_shapes == 1
        body = _COMPILE.format(dynamic=not static, variants=COMPILED_VARIANTS)
        after = _FORWARD
    if kernels.get("loss") == "chunked":
        imports.append("from autotune.models.kernels.chunked_labels import take_labels")
        body = "    take_labels(model)\n" + body
    if _OWN in kernels.items():
        imports.append("from autotune.models.kernels.convolution import take_fla")
        body = "    take_fla(model)\n" + body
    liger = _liger(plan, kernels)
    if liger:
        function, call = liger
        imports.append(f"from liger_kernel.transformers import {function}")
        body = call + body
    attention = str(plan.kernels.get("attention", "sdpa"))
    attention = _REGISTERED.get(attention, attention)
    if attention == "varlen":
        imports += [
            "from transformers import AttentionInterface",
            "from autotune.models.kernels.varlen import varlen_attention_forward",
        ]
        attention, after = "autotune_varlen", after + _VARLEN
    text = _HEAD.format(
        about=about,
        imports="\n".join([*imports, ""]) + ("\n" if imports else ""),
        attention=attention,
        body=body,
    )
    return text + after


def _liger(plan: Plan, kernels: Mapping[str, Any]) -> tuple[str, str] | None:
    """Liger's function for the model and the call of it, with every switch said."""
    switches = {switch: kernels.get(knob) == _LIGER for knob, switch in _SWITCHES.items()}
    fused = kernels.get("loss") == _LIGER
    if not any(switches.values()) and not fused:
        return None
    function = f"apply_liger_kernel_to_{plan.training.model.family}"
    said = {**switches, "cross_entropy": False, "fused_linear_cross_entropy": fused}
    arguments = ", ".join(f"{name}={value}" for name, value in said.items())
    return function, f"    {function}(\n        {arguments},\n        model=model,\n    )\n"
