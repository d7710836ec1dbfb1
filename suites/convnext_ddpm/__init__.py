"""The ConvNeXt DDPM suite: transfers, kernels and fusion of a 2D diffusion model's sampling."""
