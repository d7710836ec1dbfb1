"""Quantities that are computed from measured ones, and never gated."""
