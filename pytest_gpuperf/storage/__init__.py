"""Our files: runs, baselines and kernel tables, validated on load and written atomically."""
