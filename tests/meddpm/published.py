"""The layout of the published Med-DDPM network for image size 128, written out by hand.

Independent of the implementation: what the released checkpoints contain, as a table.
"""

from __future__ import annotations

from collections.abc import Iterator

Shape = tuple[int, ...]

EMBEDDING = 256

# (name of the block, what it is, channels in, channels out)
BLOCKS: tuple[tuple[str, str, int, int], ...] = (
    ("input_blocks.0.0", "conv", 3, 64),
    ("input_blocks.1.0", "residual", 64, 64),
    ("input_blocks.2.0.op", "conv", 64, 64),
    ("input_blocks.3.0", "residual", 64, 64),
    ("input_blocks.4.0.op", "conv", 64, 64),
    ("input_blocks.5.0", "residual", 64, 128),
    ("input_blocks.6.0.op", "conv", 128, 128),
    ("input_blocks.7.0", "residual", 128, 192),
    ("input_blocks.7.1", "attention", 192, 192),
    ("input_blocks.8.0.op", "conv", 192, 192),
    ("input_blocks.9.0", "residual", 192, 256),
    ("middle_block.0", "residual", 256, 256),
    ("middle_block.1", "attention", 256, 256),
    ("middle_block.2", "residual", 256, 256),
    ("output_blocks.0.0", "residual", 256 + 256, 256),
    ("output_blocks.1.0", "residual", 256 + 192, 256),
    ("output_blocks.1.1.conv", "conv", 256, 256),
    ("output_blocks.2.0", "residual", 256 + 192, 192),
    ("output_blocks.2.1", "attention", 192, 192),
    ("output_blocks.3.0", "residual", 192 + 128, 192),
    ("output_blocks.3.1", "attention", 192, 192),
    ("output_blocks.3.2.conv", "conv", 192, 192),
    ("output_blocks.4.0", "residual", 192 + 128, 128),
    ("output_blocks.5.0", "residual", 128 + 64, 128),
    ("output_blocks.5.1.conv", "conv", 128, 128),
    ("output_blocks.6.0", "residual", 128 + 64, 64),
    ("output_blocks.7.0", "residual", 64 + 64, 64),
    ("output_blocks.7.1.conv", "conv", 64, 64),
    ("output_blocks.8.0", "residual", 64 + 64, 64),
    ("output_blocks.9.0", "residual", 64 + 64, 64),
    ("out.0", "norm", 64, 64),
    ("out.2", "conv", 64, 1),
)

BUFFERS = (
    "betas",
    "alphas_cumprod",
    "alphas_cumprod_prev",
    "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod",
    "log_one_minus_alphas_cumprod",
    "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod",
    "posterior_variance",
    "posterior_log_variance_clipped",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "posterior_mean_coef3",
)


def network_shapes() -> dict[str, Shape]:
    """Name and shape of every tensor of the network."""
    shapes = {
        "time_embed.0.weight": (EMBEDDING, 64),
        "time_embed.0.bias": (EMBEDDING,),
        "time_embed.2.weight": (EMBEDDING, EMBEDDING),
        "time_embed.2.bias": (EMBEDDING,),
    }
    for name, kind, channels, out_channels in BLOCKS:
        shapes |= dict(_block(name, kind, channels, out_channels))
    return shapes


def checkpoint_shapes() -> dict[str, Shape]:
    """Name and shape of every tensor in a checkpoint's `ema` entry."""
    buffers: dict[str, Shape] = dict.fromkeys(BUFFERS, (250,))
    return buffers | {f"denoise_fn.{name}": shape for name, shape in network_shapes().items()}


def _block(name: str, kind: str, channels: int, out_channels: int) -> Iterator[tuple[str, Shape]]:
    if kind == "norm":
        yield from _pair(name, (channels,))
    elif kind == "conv":
        yield from _pair(name, (out_channels, channels, 3, 3, 3))
    elif kind == "attention":
        yield from _pair(f"{name}.norm", (channels,))
        yield from _pair(f"{name}.qkv", (3 * channels, channels, 1))
        yield from _pair(f"{name}.proj_out", (channels, channels, 1))
    else:
        yield from _pair(f"{name}.in_layers.0", (channels,))
        yield from _pair(f"{name}.in_layers.2", (out_channels, channels, 3, 3, 3))
        yield from _pair(f"{name}.emb_layers.1", (out_channels, EMBEDDING))
        yield from _pair(f"{name}.out_layers.0", (out_channels,))
        yield from _pair(f"{name}.out_layers.3", (out_channels, out_channels, 3, 3, 3))
        if channels != out_channels:
            yield from _pair(f"{name}.skip_connection", (out_channels, channels, 1, 1, 1))


def _pair(name: str, weight: Shape) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", weight
    yield f"{name}.bias", weight[:1]
