"""Benchmarks: speed and memory of this package itself, as ratios within one run."""
