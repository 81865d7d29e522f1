"""``--launcher local``: trials on the machine that the search runs on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from autotune.contract.plan import CommandWorkload, Workload
from autotune.errors import InputError
from autotune.launchers.base import Order
from autotune.launchers.local import LocalLauncher


class ThisMachine:
    """See :class:`autotune.launchers.base.LauncherKind`."""

    argument: Final = None
    site: Final = None

    def __init__(self, argument: str | None) -> None:
        if argument is not None:
            raise InputError(
                f"the launcher local takes nothing, and was given {argument!r}",
                hint="write --launcher local, or leave it out",
            )

    def refused_work(self, workload: CommandWorkload | Workload) -> str | None:
        """Refuse none."""
        del workload
        return None

    def refused_values(self, knob: str, values: Collection[Any]) -> dict[Any, str]:
        """Refuse none."""
        del knob, values
        return {}

    def refused_config(
        self, key: str, backend: str, config: Mapping[str, Any], stated: Collection[str]
    ) -> str | None:
        """Refuse none."""
        del key, backend, config, stated
        return None

    def launcher(self, order: Order) -> LocalLauncher:
        """Return the launcher of one study."""
        topology = order.topology
        warm = not order.is_command  # a command imports its libraries itself
        return LocalLauncher(
            order.study,
            topology.processes,
            topology.device,
            warm,
            backends=order.backends,
            modules=order.modules,
        )
