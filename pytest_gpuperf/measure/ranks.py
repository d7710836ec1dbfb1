"""Steps over ranks: each measures its own part, behind a barrier before each execution.

A collective returns when every rank takes part, so all must execute the step equally often. Rank 0
makes open decisions for all, and the barrier names each rank's next action. Each rank has its own
collector; the data are joined where the measurement is judged.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import GpuperfError, UnsoundStep, UsageFailure
from pytest_gpuperf.measure.barrier import (
    ENDED,
    STOPPED,
    VERDICT,
    RankClient,
    RankGroup,
    Rendezvous,
)
from pytest_gpuperf.measure.collector import Plan, Progress, Rounds, Work, each
from pytest_gpuperf.measure.instrument import Instrument, Measurer, Subject, ordered
from pytest_gpuperf.measure.replica import RANKS, Replicas, Task
from pytest_gpuperf.measure.trace.profile import is_collective
from pytest_gpuperf.model.measurement import (
    PAPER_WINDOW,
    RANK_COUNT,
    STEP,
    KernelTable,
    Measurement,
    Peer,
    Sample,
)
from pytest_gpuperf.model.metric import Direction
from pytest_gpuperf.storage import files

if TYPE_CHECKING:
    from pytest_gpuperf.measure.fresh_process import FreshProcess
    from pytest_gpuperf.model.settings import Settings

VARIABLE = "GPUPERF_RANKS"
"""The environment variable with the name of the meeting that a session holds for its ranks, and
whether that session judges."""

_ENDING = 3.0
"""Seconds that a rank that has failed gets to say why."""
_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Rank:
    """The place of this process among several, as torchrun's variables say it."""

    number: int
    count: int
    rendezvous: str
    """The name of the meeting's socket."""
    launched: bool = False
    """Whether a session of ours has started it, which holds the meeting and judges."""
    decides: bool = True
    """Whether a verdict is what the ranks measure for."""
    only: str = ""
    """The measurement that they were started for; others of the test are passed over."""
    kernels: bool = False
    """Whether they look at kernels as well, all of them in the same executions."""

    @property
    def leads(self) -> bool:
        """Whether this process writes, prints and judges for all of them."""
        return self.number == 0 and not self.launched


def own_rank(environment: Mapping[str, str] | None = None) -> Rank | None:
    """The rank of this process; None if there is only one process.

    Raises UsageFailure for ranks on several hosts, since the barrier is on one.
    """
    given = os.environ if environment is None else environment
    if any(name not in given for name in _REQUIRED):
        return None
    try:
        number, count = int(given["RANK"]), int(given["WORLD_SIZE"])
        local = int(given.get("LOCAL_WORLD_SIZE", count))
    except ValueError as error:
        raise UsageFailure(f"RANK, WORLD_SIZE, LOCAL_WORLD_SIZE need numbers: {error}") from error
    if count < 2 and VARIABLE not in given:
        return None
    if local != count:
        raise UsageFailure(
            f"WORLD_SIZE is {count} and LOCAL_WORLD_SIZE {local}, but gpuperf measures ranks of "
            f"one host only. Start torchrun --nproc-per-node {local} -m pytest ... on one host"
        )
    if VARIABLE in given:
        told = json.loads(given[VARIABLE])
        return Rank(number, count, told.pop("meeting"), True, **told)
    job = [given.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")]
    name = "-".join([given["MASTER_ADDR"], given["MASTER_PORT"], *job])
    # A host's name, and a job's, may be longer than the 107 bytes of a socket's.
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return Rank(number, count, f"gpuperf-{os.getuid()}-{digest}")


def take_gpu(
    rank: Rank, gpus: Sequence[str], environment: MutableMapping[str, str]
) -> tuple[str, ...]:
    """Makes one GPU the only visible GPU of the rank, before CUDA starts; returns all ranks' GPUs.

    LOCAL_RANK becomes 0, so code that chooses by it gets this GPU. With fewer `gpus` (UUIDs) than
    ranks, the launcher has already assigned GPUs: nothing is changed.
    """
    if len(gpus) < rank.count:
        return ()
    environment["CUDA_VISIBLE_DEVICES"] = gpus[rank.number]
    environment["LOCAL_RANK"] = "0"
    return tuple(gpus[: rank.count])


class RankInstrument(Instrument):
    """Measures this rank's part of a common step, together with the other ranks of the session.

    On the leading rank the result covers all ranks, on the others only their own. `tell` gets the
    reason when the process ends because a step hangs. Raises UsageFailure for a collector that
    replays, for a window, which covers one process, and if the leading rank is missing.
    """

    def __init__(
        self, own: Instrument, rank: Rank, settings: Settings, tell: Callable[[str], object]
    ) -> None:
        if settings.collector == "ncu":
            raise UsageFailure(
                "--gpuperf-collector ncu runs each kernel several times, so a collective would "
                "wait forever for the other ranks. Measure ranks with --gpuperf-collector cupti"
            )
        if settings.protocol == PAPER_WINDOW:
            raise UsageFailure(
                "--gpuperf-protocol paper-window counts the launches of one process. Leave this "
                "flag out under torchrun"
            )
        self._own = own
        self.device, self.torch_device = own.device, own.torch_device
        self._kernels = rank.kernels or settings.kernels == "always"
        self._rank = rank
        self._owed: Progress | None = None
        """The progress of a measurement whose verdict is pending; all ranks wait for it."""
        self.launcher: RankLauncher | None = None
        """Starts the fresh ranks that look at kernels, where these did not."""
        self.held: Rendezvous | None = None
        """Where this is the leading rank."""
        if rank.leads:
            known = RankGroup(rank.count, settings.time_limit)
            self.held = Rendezvous(rank.rendezvous, known, tell)
        self.client = RankClient(rank.rendezvous, rank.number, settings.time_limit)

    @contextmanager
    def entering(self, name: str, test: str) -> Iterator[None]:
        """The block that makes this measurement's step, where ranks may wait for each other.

        Raises UnsoundStep if a rank does not arrive.
        """
        if self._rank.launched:  # the session that has started it looks after it
            yield
            return
        self.client.arrive(f"the entry of {name} of {test}")
        try:
            yield
        finally:
            self.client.says("rest")  # this rank may skip, and measure nothing more

    def measure(self, subject: Subject, work: Work, plan: Plan) -> tuple[Measurement, ...]:
        """The measurement of `subject`.

        Raises UnsoundStep if a rank fails, ends, hangs, or differs from the others. The error is
        the same on all ranks, but for the step's exception on that rank itself.
        """
        rank, client, decided = self._rank, self.client, plan.enough
        if rank.only not in ("", subject.name):
            return (subject.unmeasured(self.device),)
        what, executions = f"{subject.name} of {subject.test}", itertools.count(1)

        def executes() -> None:
            client.arrive(f"execution {next(executions)} of {what}")

        def enough(rounds: Rounds) -> bool:
            return bool(client.arrive("the end of a round", decided(rounds)))

        work = replace(work, barrier=executes, together=True)
        plan = replace(plan, enough=enough)
        try:
            client.arrive(f"the beginning of {what}")
            (measured,) = self._own.measure(subject, work, plan)
            if self._kernels:
                measured = self._own.with_kernels(measured, work, plan)
            client.arrive(f"the end of {what}", files.to_json(measured), last=True)
        except BaseException as error:
            why = client.fails(error)
            # A step that raises here says by itself where.
            if isinstance(error, GpuperfError) or not why.startswith(f"rank {rank.number} failed"):
                raise UnsoundStep(f"{STOPPED} because {why or error}") from None
            raise
        self._owed = None if rank.launched else work.progress
        return (joined(read(self.held.brought())) if self.held is not None else measured,)

    def with_kernels(self, measurement: Measurement, work: Work, plan: Plan) -> Measurement:
        """The measurement with all ranks' kernels, on the leading rank. Raises as `measure`."""
        if self.launcher is None or self.held is None:
            return measurement
        return self.launcher.with_kernels(measurement, work, plan)

    def verdict(self, outcome: str) -> str:
        """The outcome of the measurement's test from the judging rank, on every rank."""
        progress, self._owed = self._owed, None
        if progress is None:
            return outcome
        with progress.aside():  # the leading rank may wait for fresh ranks
            outcome = self.client.arrive(VERDICT, outcome)
        self.client.says("rest")
        return outcome

    @property
    def stopped(self) -> bool:
        """Whether the ranks have stopped because of one: no later test can be measured."""
        # ENDED: the session of the leading one is over
        return not self._rank.launched and self.client.stops() not in ("", ENDED)

    def close(self) -> None:
        """The session ends. torchrun ends all ranks with the first that failed: so wait for it."""
        self.client.leaves(wait=not (self._rank.leads or self._rank.launched))
        if self.held is not None:
            self.held.close()


@dataclass(eq=False)
class RankLauncher(Measurer):
    """Starts the ranks of one measurement, each a fresh process of this session's test.

    If torchrun has started ranks, it starts as many again in the place of `Replicas`.
    """

    replicas: Replicas
    count: int
    gpus: Sequence[str]
    """The GPUs of the ranks, one each; without any, each rank sees this process's GPUs."""
    decides: bool
    kernels: bool = False
    """Whether the ranks collect kernels too."""
    _known: dict[tuple[str, str], list[Measurement]] = field(default_factory=dict, init=False)

    def measure(self, subject: Subject, work: Work, _: Plan) -> tuple[Measurement, ...]:
        """The measurement of all ranks. Raises UnsoundStep, with what the rank at fault wrote."""
        work.progress.begins(f"{self.count} ranks in fresh processes")
        return (self._measured(subject.test, subject.name, kernels=self.kernels),)

    def with_kernels(self, measurement: Measurement, work: Work, _: Plan) -> Measurement:
        """The measurement with the kernels of every rank, from fresh ranks if these have none."""
        if measurement.kernels is not None:
            return measurement
        work.progress.begins(f"kernels of {self.count} ranks in fresh processes")
        looked = self._measured(measurement.test, measurement.name, kernels=True)
        return replace(measurement, kernels=looked.kernels)

    def measurements(
        self,
        test: str,
        name: str,
        count: int,
        meanwhile: Callable[[], object] | None = None,
    ) -> tuple[Measurement, ...]:
        """`count` measurements `name` of the test, each of as many fresh processes as there are
        ranks. Raises MeasurementError.
        """
        known = self._known.setdefault((test, name), [])
        if meanwhile:
            meanwhile()
        missing = count - len(known)
        for _ in each(self.replicas.progress, "inconclusive, fresh ranks", missing):
            known.append(self._measured(test, name))
        return tuple(known[:count])

    def _measured(self, test: str, only: str, *, kernels: bool = False) -> Measurement:
        """The measurement `only` of this test."""
        name = f"gpuperf-{os.getuid()}-{uuid.uuid4().hex}"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]  # free at this moment, for torch's process group
        told = {"meeting": name, "decides": self.decides, "only": only, "kernels": kernels}
        shared = {
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            # A process of torchrun may start more ranks, which have no agent.
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # as torchrun does
            VARIABLE: json.dumps(told),
        }
        environments = []
        for number in range(self.count):
            own = {**shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            take_gpu(Rank(number, self.count, name), self.gpus, own)
            environments.append(own)

        with self.replicas.together(Task(test, RANKS, only), environments) as processes:
            ended = [process.ended for process in processes]
            known = RankGroup(self.count, self.replicas.time_limit, ended)
            held = Rendezvous(name, known)
            try:
                return joined(read(held.brought()))
            except UnsoundStep as problem:
                at_fault = {number: processes[number] for number in known.at_fault}
                raise UnsoundStep(f"{problem}{_written(at_fault)}") from None
            finally:
                held.close()


def _written(at_fault: Mapping[int, FreshProcess]) -> str:
    """The last output of each rank; of one that hangs, its position when it is told to end."""
    said = []
    for number, process in at_fault.items():
        lines = process.finished(_ENDING).standing()
        said += [f"\nLast output of rank {number}:", lines] if lines else []
    return "\n".join(said)


def read(said: Sequence[str]) -> list[Measurement]:
    """The ranks' measurements, as they have said them."""
    return [files.adapter(Measurement).validate_json(text) for text in said]


def joined(ranks: Sequence[Measurement]) -> Measurement:
    """The measurement of the step as a whole, from those of all ranks in order.

    Each metric has the worst value of any rank in the same execution. A step takes the time of its
    slowest rank, and extra work on one rank is not averaged away. Hardware counts depend on the
    waits inside collectives, so they are kept by rank only.
    """
    first = ranks[0]
    waits = peer_waits([peer for one in ranks for peer in one.peers])
    peers = []
    for number, one in enumerate(ranks):
        waited = [Sample(STEP, "peer_wait", tuple(waits[number]))] if waits else []
        samples_of = (*one.peers[0].samples, *waited)
        peers.append(replace(one.peers[0], name=f"rank {number}", samples=samples_of))
    by_rank = [{(s.phase, s.metric): s.values for s in peer.samples} for peer in peers]
    known = catalogue().metrics
    samples: list[Sample] = []
    for phase, metric in dict.fromkeys(key for one in by_rank for key in one):
        if known[metric].hardware:
            continue
        values = [one[phase, metric] for one in by_rank if (phase, metric) in one]
        worst = min if known[metric].direction is Direction.HIGHER else max
        paired = zip(*values, strict=False)  # a rank may have been executed more often
        samples.append(Sample(phase, metric, tuple(worst(once) for once in paired)))
    workload = {**first.workload, RANK_COUNT: len(ranks)}
    tables = [one.kernels for one in ranks if one.kernels is not None]
    kernels = joined_tables(tables) if len(tables) == len(ranks) else None
    return replace(
        first, samples=ordered(samples), peers=tuple(peers), workload=workload, kernels=kernels
    )


def joined_tables(tables: Sequence[KernelTable]) -> KernelTable:
    """Rank 0's table with those of its peers, without the waits in collectives."""
    collectives = [
        [(name, one.duration) for one in t.launches if is_collective(name := t.names[one.name])]
        for t in tables
    ]
    if waits := _waited(collectives):
        tables = [_unwaited(table, of_rank) for table, of_rank in zip(tables, waits, strict=True)]
    return replace(tables[0], peers=tuple(tables[1:]))


def _unwaited(table: KernelTable, waits: Sequence[float]) -> KernelTable:
    """The table with the own times of its collectives."""
    left = iter(waits)
    launches = tuple(
        replace(one, duration=one.duration - next(left))
        if is_collective(table.names[one.name])
        else one
        for one in table.launches
    )
    waited = math.fsum(waits)
    return replace(table, launches=launches, busy=tuple(max(0.0, b - waited) for b in table.busy))


def _waited(collectives: Sequence[Sequence[tuple[str, float]]]) -> list[list[float]]:
    """The wait of each rank in each of its collectives, which have a name and a duration.

    A collective ends everywhere at about the same time, and takes its own time on the last rank to
    arrive. Additional time on another rank is that rank's wait, so no clocks are compared. Empty if
    the ranks' collectives differ.
    """
    if len({tuple(name for name, _ in of_rank) for of_rank in collectives}) != 1:
        return []
    own = [min(took for _, took in of) for of in zip(*collectives, strict=True)]
    return [
        [took - least for (_, took), least in zip(of_rank, own, strict=True)]
        for of_rank in collectives
    ]


def peer_waits(peers: Sequence[Peer]) -> list[list[float]]:
    """Nanoseconds that each rank waited for the others inside collectives, per traced execution.

    Empty if the ranks' collectives differ.
    """
    executions = []
    for once in zip(*(peer.collectives for peer in peers), strict=False):
        taken = [[(n, took) for n in sorted(of) for took in of[n]] for of in once]
        if not (waits := _waited(taken)):
            return []
        executions.append([math.fsum(of_rank) for of_rank in waits])
    return [[*of_rank] for of_rank in zip(*executions, strict=True)]
