"""Auto-tuner for distributed training configurations.

Importing the package loads no heavy library; the command line is :mod:`autotune.cli`. A training
script of your own that is tuned calls :func:`report_step` after each optimizer step.
"""

from __future__ import annotations

from autotune.contract.steps import report_step

__all__ = ["__version__", "report_step"]

__version__ = "0.1.0"
