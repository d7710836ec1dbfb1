"""Reports for people: they only read measurements and verdicts."""
