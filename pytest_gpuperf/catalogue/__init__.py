"""Names: metrics, architectures, families of kernels, units and how numbers are written."""
