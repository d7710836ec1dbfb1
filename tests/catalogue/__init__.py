"""Names: metrics, architectures, kernel families."""
