"""Quantities that are computed from measured ones."""
