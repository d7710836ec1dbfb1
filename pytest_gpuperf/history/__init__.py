"""History: many run files over time, the levels of their metrics, and what changed with them."""
