"""The size of the images and of the network. Imports no torch: flags are checked by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The size of the images and of the network."""

    size: int = 64
    """Rows and columns of the image."""
    widths: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of each level; every level has half the rows and columns of the one above."""
    channels: int = 3
    """Of the image."""

    def __post_init__(self) -> None:
        """Raises ValueError for what cannot be a network."""
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths {self.widths}: at least one is needed, each 1 or more")
        if self.widths[0] % 2 or self.widths[0] < 4:
            raise ValueError(
                f"width {self.widths[0]}: the first must be even and 4 or more, "
                "the time embedding has a sine and a cosine of each frequency"
            )
        if self.size < 1 or self.size % self.factor:
            raise ValueError(
                f"size {self.size}: {len(self.widths)} levels need a multiple of {self.factor}"
            )

    @property
    def factor(self) -> int:
        """By which the lowest level's map is smaller than the image."""
        return 1 << (len(self.widths) - 1)

    def images(self, batch: int) -> tuple[int, int, int, int]:
        """The shape of so many images."""
        return batch, self.channels, self.size, self.size
