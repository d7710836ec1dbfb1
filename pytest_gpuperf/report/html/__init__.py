"""A run as one HTML file: verdicts, what changed, and the figures drawn from what was measured."""
