"""The network of the ConvNeXt DDPM, over exchangeable operators."""

from suites.convnext_ddpm.model.network import Joining, Network, Shape, seeded_network

__all__ = ["Joining", "Network", "Shape", "seeded_network"]
