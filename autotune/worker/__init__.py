"""Runs in the training processes. Started by name, imported by nobody."""
