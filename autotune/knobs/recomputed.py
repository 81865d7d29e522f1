"""What selective recomputation keeps, as data: names of ATen functions. Imports nothing."""

from __future__ import annotations

from typing import Final

PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm")
ATTENTIONS: Final = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Kept where the installed torch has them."""
