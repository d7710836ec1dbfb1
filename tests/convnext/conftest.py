"""What the tests of the ConvNeXt DDPM suite share.

torch loads its compiler with the first optimizer; `pytester` would forget it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._dynamo


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """At these sizes threads wait for each other for longer than they work.

    And sums are rounded as they are divided among threads: bits are compared here.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
