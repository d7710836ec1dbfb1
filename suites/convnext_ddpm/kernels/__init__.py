"""The network's operators in CUDA C++ of our own, compiled when they are first needed."""
