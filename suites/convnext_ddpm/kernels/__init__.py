"""The network's operators in CUDA C++ of our own, compiled when they are first needed."""

from suites.convnext_ddpm.kernels.operators import KernelOperators

__all__ = ["KernelOperators"]
