"""Attachment: a process that does a part of a test's step, and counts it where the test asks.

A worker surrounds its work with `with attached("loader"):`, which does nothing unless a test waits
for it: `with gpuperf.workers():` tells the processes that are started inside, by a variable of
their environment. What a worker does between the beginning and the end of a counted execution of
the step is counted in the worker and added to the step. The test says how (`attached_workers.py`).
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from threading import get_ident
from typing import Any, Protocol

from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.attached_workers import BEGINS, CPU, CUPTI, ENDS, NAME, VARIABLE
from pytest_gpuperf.measure.meeting import Connection, connect

_ANSWER_S = 60.0
"""Seconds after which a worker goes on without a test that does not answer."""
_PATIENCE = 5.0


class _Counter(Protocol):
    """Counts a block in the worker."""

    def begin(self) -> None:
        """It begins."""
        ...

    def end(self) -> Mapping[str, float]:
        """It ends: what was counted, by metric."""
        ...


class _Operators:
    """What torch's operators do on a CPU."""

    def __init__(self) -> None:
        from pytest_gpuperf.measure.cpu.dispatch import StepCounter

        self._counter = StepCounter()
        self._watching = ExitStack()

    def begin(self) -> None:
        """It begins."""
        self._watching.enter_context(self._counter.watching())

    def end(self) -> Mapping[str, float]:
        """It ends."""
        self._watching.close()
        self._counter.memory.end()
        counted = asdict(self._counter.step)
        if self._counter.hooks_refused:
            del counted["saved_bytes"]
        return {metric: float(value) for metric, value in counted.items()}


def _counter(how: Mapping[str, Any], *, first_use: bool) -> _Counter:
    if how["by"] == CPU:
        return _Operators()
    from pytest_gpuperf.measure.cupti.turns import BlockCounter, BlockTrace

    if how["by"] == CUPTI:
        return BlockCounter(how["counters"], first_use=first_use)
    return BlockTrace(how["metrics"], first_use=first_use)


_Key = tuple[int, str, str]
"""A process, which may have been forked since, its socket and a name."""
_free: dict[_Key, list[Connection] | None] = {}
"""Lines of which no block is open; None where nobody answered."""
_open: set[tuple[int, int]] = set()
"""Processes and threads that are inside a block."""


@contextmanager
def attached(name: str = "worker", *, first_use: bool = False) -> Iterator[None]:
    """A block whose work is a part of what a test measures; around it goes what a worker does.

    For free where no test waits, as in production. A block inside another is a part of that; one
    that is open at the same time in another thread is another worker. With `first_use` the block
    may be the first of its process to use a GPU, which is made ready before. What keeps the worker
    from counting is told to the test, and never raised here.
    """
    place = os.getpid(), get_ident()
    key = os.getpid(), os.environ.get(VARIABLE, ""), name
    line = _line(key) if key[1] and place not in _open else None
    if line is None:
        yield
        return
    _open.add(place)
    line.send({"is": BEGINS})
    told = line.receive()
    how: Mapping[str, Any] | None = told["count"] if told is not None else None
    counts: Mapping[str, float] = {}
    problem, counter = "", None
    try:
        if how and not (how["by"] == CPU and _is_counted(line)):
            try:
                counter = _counter(how, first_use=first_use)
                counter.begin()
            except Exception as error:
                problem, counter = str(error), None
        yield
    finally:
        if counter is not None:
            try:
                counts = counter.end()
            except Exception as error:
                problem = str(error)
        _open.discard(place)
        line.send({"is": ENDS, "counts": dict(counts), "problem": problem})
        line.receive()
        if (free := _free[key]) is not None:
            free.append(line)


def _is_counted(line: Connection) -> bool:
    """Whether the test itself counts what this thread does on a CPU: a block would once more."""
    from pytest_gpuperf.measure.cpu.dispatch import is_watched

    return line.pid() == os.getpid() and is_watched()


def _line(key: _Key) -> Connection | None:
    """One of this process that is free, or a new one: as many as are needed at once."""
    free = _free.setdefault(key, [])
    if free is None:
        return None
    with suppress(IndexError):  # asked first, another thread could take the last
        return free.pop()
    process, socket, name = key
    try:
        line = connect(socket, _PATIENCE)
    except MeasurementError:  # the test is over, and the worker lives on
        _free[key] = None
        return None
    line.give_up_after(_ANSWER_S)
    line.send({NAME: name})
    atexit.register(_close, line, process)
    return line


def _close(line: Connection, pid: int) -> None:
    """At the end of the worker, and not of what was forked from it and has the same socket."""
    if os.getpid() == pid:
        line.close()
