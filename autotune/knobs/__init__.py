"""Knob tables: pure data, one module an owner."""
