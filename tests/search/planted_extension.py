"""Planted into a search and its fork server: a setting for which the engine compiles an extension.

A builder of DeepSpeed's own kind, its sources in ``$PLANTED_SOURCES``, is compiled and loaded by
the ranks at first use, as DeepSpeed does it for quantised weights, but without a GPU. The fork
server imports this module; the coordinator calls :func:`plant_knob`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from autotune.backends import deepspeed
from autotune.knobs import zero3
from autotune.knobs.knob import Need

KNOB = "allgather_sequential"
BUILDER = "PlantedBuilder"


def plant_knob() -> None:
    """Say in the table what the setting needs."""
    need = Need(kind="compiler", name=BUILDER)
    deepspeed.Zero3Backend.knobs = tuple(
        dataclasses.replace(knob, needs=(need,)) if knob.name == KNOB else knob
        for knob in zero3.KNOBS
    )


def plant_engine() -> None:
    """Let the engine load the extension where the setting is on."""
    from deepspeed.ops import op_builder
    from deepspeed.ops.op_builder.cpu.builder import CPUOpBuilder

    from autotune.backends import deepspeed_engine

    class PlantedBuilder(CPUOpBuilder):
        def __init__(self) -> None:
            super().__init__(name="planted")

        def absolute_name(self) -> str:
            return "deepspeed.ops.planted_op"

        def sources(self) -> list[str]:
            return [str(Path(os.environ["PLANTED_SOURCES"]) / "planted.cpp")]

    op_builder.PlantedBuilder = PlantedBuilder
    build = deepspeed_engine.build

    def with_extension(config: Any, plan: Any, rank: Any) -> Any:
        if plan.config[f"zero3.{KNOB}"]:
            assert op_builder.PlantedBuilder().load(verbose=False).answer == 42
        return build(config, plan, rank)

    deepspeed_engine.build = with_extension


if any(argument.startswith("--control-fd") for argument in sys.argv):
    plant_knob()
    plant_engine()
