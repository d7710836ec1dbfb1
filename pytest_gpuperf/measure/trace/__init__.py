"""The launches of a step and their times, from a trace of one execution."""
