"""A spawned process that does what it is asked over a pipe, until it is asked for None."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Asked = Callable[[float], None]
"""Has the process do it, and waits."""


@contextmanager
def serving(serve: Callable[..., None], *arguments: object) -> Iterator[Asked]:
    """A process of `serve`, which gets its end of a pipe first, for the block."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=serve, args=(its, *arguments))
    process.start()

    def ask(what: Any) -> None:
        mine.send(what)
        mine.recv()

    try:
        yield ask
    finally:
        mine.send(None)
        process.join()
