"""Hardware counters in process, through CUPTI's range profiler."""
