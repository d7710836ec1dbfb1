"""Tests of the Med-DDPM suite: its network, its input, its configurations and its step."""
