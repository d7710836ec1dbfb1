"""Collectors: what obtains counters and times for a step, each behind `base.Collector`."""
