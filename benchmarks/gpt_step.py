"""Somebody else's training step: a small GPT under DistributedDataParallel or FSDP2.

A test imports it as a user's module: nothing in it knows of gpuperf. `Slowdown` is what one rank
does beside the others, for trials: more kernels, one kernel, or nothing while the host sleeps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

SMALL = (64, 32, 2, 2, 16, 2)
LARGE = (8192, 1024, 8, 16, 512, 64)
"""Vocabulary, width, depth, heads, length and batch, on a CPU and on a GPU."""
KINDS = ("kernels", "kernel", "sleep")
PRODUCTS = 3
_CALIBRATING, _ROWS, _BY = 20, 131072, 128


@dataclass
class Slowdown:
    """What one rank does more: products of so many rows, or a sleep."""

    kind: str = ""
    rows: int = 0
    seconds: float = 0.0


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of all tokens at once."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention and a perceptron, each beside what it is given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        inner = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        x = x + self.attention(self.first(x))
        out: torch.Tensor = x + self.mlp(self.second(x))
        return out


class GPT(nn.Module):
    """Predicts the next token."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """A score of each word for each place."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores: torch.Tensor = self.head(self.last(x))
        return scores


class Trainer:
    """Forward, backward and AdamW of one rank."""

    def __init__(self, sharding: str, device: str, sizes: tuple[int, ...] = ()) -> None:
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        if device == "cpu":
            torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(0)
        vocabulary, width, depth, heads, length, batch = sizes or (
            SMALL if device == "cpu" else LARGE
        )
        self.device = device
        self.slowdown = Slowdown()
        model: Any = GPT(vocabulary, width, depth, heads, length).to(device)
        if sharding == "ddp":
            model = nn.parallel.DistributedDataParallel(model)
        else:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(device, (distributed.get_world_size(),))
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
        self.given, self.wanted = tokens[:, :-1], tokens[:, 1:].reshape(-1)
        self.spare = torch.ones(_ROWS if device == "cuda" else 64, width, device=device)
        self.weight = torch.ones(width, width, device=device)
        for _ in range(11):  # DDP has its host wait for events in each of its first ten
            self()

    def __call__(self) -> torch.Tensor:
        """One step."""
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.given)
        loss: Any = functional.cross_entropy(logits.flatten(0, 1), self.wanted)
        self.log(loss.item())
        loss.backward()
        self.optimizer.step()
        detached: torch.Tensor = loss.detach()
        return detached

    def log(self, loss: float) -> float:
        """What a rank may do by itself, while nothing runs."""
        slowdown = self.slowdown
        if slowdown.kind == "sleep":
            time.sleep(slowdown.seconds)
        if slowdown.kind == "kernel":
            self.spare[: slowdown.rows] @ self.weight
        if slowdown.kind == "kernels":
            for _ in range(PRODUCTS):
                self.spare[: slowdown.rows] @ self.weight
        return loss

    def slowed(self, kind: str, share: float) -> Slowdown:
        """A slowdown of this kind that takes this share of the step. All ranks have to ask."""
        step = self._seconds(self)
        product = self._seconds(lambda: self.spare @ self.weight)
        products = PRODUCTS if kind == "kernels" else 1
        rows = len(self.spare) * share * step / product / products
        return Slowdown(kind, max(_BY, round(rows / _BY) * _BY), share * step)

    def _seconds(self, work: Any) -> float:
        """Of one of these by itself."""
        cuda: Any = torch.cuda
        wait = cuda.synchronize if self.device == "cuda" else time.perf_counter
        for _ in range(2):
            wait()
            begun = time.perf_counter()
            for _ in range(_CALIBRATING):
                work()
            wait()
        return (time.perf_counter() - begun) / _CALIBRATING
