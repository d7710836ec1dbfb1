"""The device that is measured: NVML, its fitness, its fingerprint and its memory."""
