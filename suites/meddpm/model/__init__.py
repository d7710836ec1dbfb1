"""The Med-DDPM network and its diffusion process, loadable from the released checkpoints."""

from suites.meddpm.model.checkpoint import load_weights
from suites.meddpm.model.diffusion import GaussianDiffusion3D, med_ddpm
from suites.meddpm.model.unet import UNet3D

__all__ = ["GaussianDiffusion3D", "UNet3D", "load_weights", "med_ddpm"]
