"""Planted in ranks: whoever would compile an extension fails instead."""

from __future__ import annotations

from typing import Any, NoReturn

MESSAGE = "an extension would be compiled"


def forbid(rank: int) -> None:
    """Forbid builds, by DeepSpeed's builders and by torch's."""
    del rank
    from deepspeed.ops.op_builder import builder
    from torch.utils import cpp_extension

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError(MESSAGE)

    builder.OpBuilder.load = builder.OpBuilder.jit_load = refuse
    cpp_extension.load = cpp_extension.load_inline = cpp_extension._jit_compile = refuse


def forbid_beside_deepspeeds_adam(rank: int) -> None:
    """The same with the optimizer that DeepSpeed would take by itself."""
    forbid(rank)
    from autotune.backends import deepspeed

    optimizer = deepspeed._optimizer

    def own(plan: Any) -> dict[str, Any]:
        rendered = optimizer(plan)
        del rendered["optimizer"]["params"]["torch_adam"]
        del rendered["optimizer"]["params"]["fused"]
        return rendered

    deepspeed._optimizer = own
