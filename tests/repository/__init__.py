"""Committed data and documentation, and the benchmarks that made them."""
