"""Run as a program: takes a YAML through accelerate's own loader and launch checks.

Reads ``{"folder", "file"}`` on stdin and works in that folder; its last line on stdout is
``{"version", "refused", "understood"}``. It goes as far as ``accelerate launch`` does before it
starts processes, and then builds the plugin that each process would build from its environment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def understand(file: str) -> dict[str, Any]:
    """Return what accelerate makes of ``file``.

    Raises:
        Exception: Whatever accelerate raises for a file that it refuses.
    """
    from accelerate.commands import launch

    words = ["--config_file", file, "train.py"]
    args, defaults, flagged = launch._validate_launch_command(
        launch.launch_command_parser().parse_args(words)
    )
    found: dict[str, Any] = {
        "distributed_type": defaults.distributed_type.value,
        "num_processes": args.num_processes,
        "num_machines": args.num_machines,
        "mixed_precision": args.mixed_precision,
    }
    args.main_process_port = 0  # ours may be taken; nothing is started here
    if args.use_deepspeed:
        return found | _deepspeed(args, defaults, flagged=flagged)
    from accelerate.utils.launch import prepare_multi_gpu_env

    if args.use_fsdp or args.multi_gpu:
        environment = prepare_multi_gpu_env(args)
        if args.use_fsdp:
            found |= _fsdp(environment)
    return found


def _deepspeed(args: Any, defaults: Any, *, flagged: bool) -> dict[str, Any]:
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    # As launch_command does it, for the check that follows in every process.
    fields = list(defaults.deepspeed_config) + (["mixed_precision"] if flagged else [])
    args.deepspeed_fields_from_accelerate_config = ",".join(fields)
    _, environment = prepare_deepspeed_cmd_env(args)
    os.environ.update(environment)
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(args.mixed_precision)
    config = plugin.deepspeed_config
    return {
        "zero3_init_flag": plugin.zero3_init_flag,
        # The plugin reads it when it is given the model (``set_moe_leaf_modules``).
        "moe_layer_classes": environment.get("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
        "multinode_launcher": args.deepspeed_multinode_launcher,
        "deepspeed": _plain(config),
    }


def _plain(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _plain(value) for key, value in config.items()}
    return None if config == float("inf") else config


def _fsdp(environment: dict[str, str]) -> dict[str, Any]:
    os.environ.update(environment)
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin()
    return {
        "fsdp_version": plugin.fsdp_version,
        "reshard_after_forward": plugin.reshard_after_forward,
        "activation_checkpointing": plugin.activation_checkpointing,
        "state_dict_type": plugin.state_dict_type.name,
        "layer_classes": plugin.transformer_cls_names_to_wrap,
    }


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    os.chdir(request["folder"])
    import accelerate

    refused: str | None = None
    understood: dict[str, Any] = {}
    try:
        understood = understand(request["file"])
    except Exception as error:
        refused = f"{type(error).__name__}: " + " ".join(str(error).split())
    answer = {"version": accelerate.__version__, "refused": refused, "understood": understood}
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
