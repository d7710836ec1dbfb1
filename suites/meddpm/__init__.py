"""Med-DDPM: a 3D diffusion model that turns a segmentation mask into a brain MRI volume."""
