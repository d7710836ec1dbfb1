"""Many nights of run files: reading, levels, what differs, and what is said of it."""
