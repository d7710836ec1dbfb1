"""Decisions that need a baseline: what a measurement is held against, and what is accepted."""
