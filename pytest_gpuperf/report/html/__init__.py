"""A run as one HTML file: verdicts, changes, and the figures drawn from measurements."""
