"""Kernels: one file a layer type, and the table of what can be bound to each."""
