"""Portable counts of a step, on a machine without a GPU."""
