"""What a step launched and when, from a trace of one execution."""
