"""Tests of the ConvNeXt DDPM suite."""
