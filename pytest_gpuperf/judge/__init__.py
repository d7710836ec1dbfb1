"""The judge: pure functions over numbers. Knows nothing of pytest, CUDA or files."""
