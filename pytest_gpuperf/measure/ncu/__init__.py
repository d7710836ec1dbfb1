"""Counters of a step through Nsight Compute, from a fresh process of the test."""
