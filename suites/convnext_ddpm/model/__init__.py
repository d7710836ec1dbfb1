"""The network of the ConvNeXt DDPM, over exchangeable operators."""

from suites.convnext_ddpm.model.network import Joining, Network, seeded_network

__all__ = ["Joining", "Network", "seeded_network"]
