"""The headline: the one cause of a loss that fits in a sentence, and of what kind it is.

Pure, as all of the judge. Of the candidates the one that costs most time is the cause; of what kind
it is, its kernels' names and their numbers say. How much the step lost is what was judged, never
what the trace says.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean
from typing import TypeVar

from pytest_gpuperf.judge.alignment import LaunchSequence, numbered
from pytest_gpuperf.judge.loss import FREES, Candidate, Evidence, candidates_of
from pytest_gpuperf.judge.verdict import NOT_COMPILED
from pytest_gpuperf.model.result import (
    CallChange,
    ChangeKind,
    Headline,
    IdleChange,
    KernelChange,
    LineChange,
    LossKind,
    Outcome,
    Verdict,
)

TOLD = 0.25
"""What explains less of the step's change than that is not its cause, where a call of the host may
be it."""
LAYOUT, COPY = "layout", "copy"
"""Families of kernels that compute nothing."""
_COPYING = ("aten.copy_", "aten.clone", "aten.contiguous", "aten._to_copy")
"""Operators that do so where `layout_copies` says that it is done."""
_AGAIN = 0.9
"""The part of a function's launches that are as many times as many, where it is called again."""
_DISTINCT = 3
"""So many kernels at least are told to be work that is done again; one is just one more."""
_PRECISE = 0.2
"""The part of what changed that has another data type, where that is why: casts come with it."""
_SCALAR = 1e4
"""Nanoseconds that a copy of a number takes at most: who copies one to the host waits for it."""
_UNFUSED = 20
"""So many launches in place of one that is gone are the same work, launched piece by piece."""
_NAMED = 3
"""Kernels that are named."""
_WAITS = re.compile(r"Synchronize|^(cuda|cu)Memcpy(?!.*Async)")
_ALLOCATES = re.compile(r"Malloc|Free|MemCreate|MemMap|MemAlloc|HostAlloc|HostRegister")
_COUNTED = (
    (re.compile(r"synchronizations$"), LossKind.SYNCHRONISATION),
    (re.compile(r"^(copies$|copy_bytes_)"), LossKind.TRANSFER),
    (re.compile(r"allocations$"), LossKind.MEMORY),
    (re.compile(r"^(recompilations|graph_breaks|compiled_graphs)$"), LossKind.RECOMPILATION),
)
"""Metrics of what the host does, the ones that say most first."""
_ORDER = [kind for _, kind in _COUNTED]
_PRECISIONS = (
    # The first type counts: an optimizer's kernel of floats takes its learning rate as a double.
    (
        "float64",
        r"^(?!.*?\bfloat\b.*\bdouble\b).*\bdouble\b|f64|dgemm|[dD]884|nvjet_(sm\d+_)?d[a-z]+_",
    ),
    ("float8", r"e4m3|e5m2|fp8|Float8"),
    ("bfloat16", r"BFloat16|bfloat16|bf16|nvjet_(sm\d+_)?t[a-z]+_"),
    (
        "float16",
        r"[hH]alf(_t)?\b|__half|f16|fp16|4HalfE|hgemm|[hs]884|h16816|nvjet_(sm\d+_)?h[a-z]+_",
    ),
    ("tf32", r"tf32|tensorop_s1688gemm"),
    ("float32", r"\bfloat\b|f32|sgemm|scudnn|simt"),
)
"""What a kernel's name says of its data type; of several the first: a float32 is everywhere. cuBLAS
calls its newest kernels nvjet_sm90_tst_...: the first letter is of what is multiplied, t of
bfloat16, h of float16, d of float64."""
MOVED = 0.01
"""From here on it is said that most kernels moved by so much."""
MOST_TOGETHER = 0.75
"""Of a loss that all kernels share no line is named for more than the rest."""
_SENT = "HtoD (Pageable"
"""In the name of a copy that the host waits for, and does not ask for."""
_COPIED = (
    (r"HtoD|HtoA", "copy_bytes_h2d"),
    (r"DtoH|AtoH", "copy_bytes_d2h"),
    (r"DtoD", "copy_bytes_d2d"),
)
"""Directions of copies, and the metrics of their bytes."""


@lru_cache(maxsize=1 << 14)
def precision(name: str) -> str:
    """The data type that a kernel of that name computes in; "" where the name does not say."""
    return next((known for known, says in _PRECISIONS if re.search(says, name[:2000])), "")


def headline(
    evidence: Evidence,
    entries: Sequence[KernelChange],
    lines: Sequence[LineChange],
    calls: Sequence[CallChange],
    idle: Sequence[IdleChange],
    shift: float | None = None,
) -> Headline | None:
    """What made the step worse; None where nothing did, by the verdicts that there are.

    None as well where no code did: all kernels take so much longer, `shift`, as clocks have them.
    `entries`, `lines`, `calls` and `idle` are what attribution has found. What the host is counted
    to do more of comes first where the step's time has not changed beyond its noise.
    """
    regressed = [v for v in evidence.verdicts if v.outcome is Outcome.REGRESSED]
    if evidence.verdicts and not regressed:
        return None
    step, slower = evidence.step, bool(evidence.step and evidence.step.slower)
    candidates = candidates_of(evidence, entries, lines, calls, idle)
    trial = _Trial(evidence, entries, candidates)
    for lost in [v for v in regressed if v.reason == NOT_COMPILED]:
        return trial.of_metric(LossKind.RECOMPILATION, lost)
    counted = [(kind, v) for v in regressed if (kind := _kind_of_metric(v.metric))]
    counted.sort(key=lambda one: _ORDER.index(one[0]))
    if counted and not slower and (step or len(counted) == len(regressed)):
        return trial.of_metric(*counted[0])
    worst = max(candidates, key=lambda one: one.score, default=None)
    if worst is None or worst.score <= (0.0, 0, 0):
        if counted:
            return trial.of_metric(*counted[0])
        return trial.made(LossKind.UNKNOWN, Candidate()) if slower else None
    if step and slower and worst.score[0] < TOLD * step.change:
        # The trace does not see the loss; a call that is new may be it.
        calling = max(candidates, key=lambda one: (one.more, one.score))
        if calling.more > 0:
            return trial.of_calls(calling)
        if counted:
            return trial.of_metric(*counted[0])
    told = trial.judged(worst, dict(reversed(counted)))  # of each kind the first
    return None if told.kind is LossKind.SLOWER and _together(entries, shift) else told


def _together(entries: Sequence[KernelChange], shift: float | None) -> bool:
    """Whether what all kernels have moved by is most of the loss."""
    if shift is None or shift < MOVED:
        return False
    lost = math.fsum(entry.change for entry in entries)
    return lost * MOST_TOGETHER <= shift * math.fsum(entry.before for entry in entries)


class _Trial:
    """Of what kind it is."""

    def __init__(
        self, evidence: Evidence, entries: Sequence[KernelChange], candidates: Sequence[Candidate]
    ) -> None:
        self._of, self._candidates = evidence, candidates
        names = [key[0] for key in (*evidence.new.keys, *evidence.old.keys)]
        known = tuple(dict.fromkeys(names))
        self._moved = {
            (known[entry.name], entry.grid, entry.block)
            for entry in entries
            if entry.kind in (ChangeKind.SLOWER, ChangeKind.FASTER) and entry.name is not None
        }
        """Kernels that are launched as before and take another time."""
        self._copying = not evidence.timed and any(
            v.metric.startswith("layout_copies") and v.outcome is Outcome.REGRESSED
            for v in evidence.verdicts
        )
        """Whether operators are counted to copy tensors into another layout."""

    def judged(self, candidate: Candidate, counted: dict[LossKind, Verdict]) -> Headline:
        copies = [i for i in candidate.added if self._of.family(self._of.new.keys[i][0]) == COPY]
        only_copies = (
            bool(copies) and len(copies) == len(candidate.added) and not candidate.replaced
        )
        if candidate.more > 0 and (candidate.idle >= candidate.change or only_copies):
            return self.of_calls(candidate)
        if candidate.idle > candidate.change and not candidate.bound:
            for kind in (LossKind.SYNCHRONISATION, LossKind.MEMORY, LossKind.RECOMPILATION):
                if kind in counted:
                    return self.of_metric(kind, counted[kind], candidate)
            return self.made(LossKind.HOST, candidate)
        return self._of_kernels(candidate)

    def of_calls(self, candidate: Candidate, counted: LossKind | None = None) -> Headline:
        """Of what the host does more often: it waits, or asks for memory.

        Of both the one that was `counted`, where that is known. Who sends something to the GPU out
        of pageable memory waits for that; and memory is asked for where it was given back.
        """
        more = [call for call in candidate.calls if call.after > call.before]
        kinds = {_kind_of_call(call.name) for call in more}
        kind = next(
            one
            for one in (counted, LossKind.SYNCHRONISATION, LossKind.MEMORY, LossKind.HOST)
            if one in kinds
        )
        those = [call for call in more if _kind_of_call(call.name) is kind]
        new, old = self._of.new.keys, self._of.old.keys
        sent = sum(_SENT in new[i][0] for i in candidate.added)
        # Out of memory that was pinned before as well.
        sent += sum(_SENT in new[i][0] and _SENT not in old[j][0] for i, j in candidate.replaced)
        if kind is LossKind.SYNCHRONISATION and 0 < sum(c.after - c.before for c in those) <= sent:
            return self._transfer(candidate, _SENT)
        freeing = max(self._candidates, key=lambda one: one.freed)
        if kind is LossKind.MEMORY and candidate.freed <= 0 < freeing.freed:
            return self.of_calls(freeing, LossKind.MEMORY)
        most = max(
            those, key=lambda call: (bool(FREES.search(call.name)), call.after - call.before)
        )
        return self.made(
            kind,
            candidate,
            line=most.line,
            modules=tuple(dict.fromkeys(m for call in those for m in call.modules)),
            what=most.name,
            before=sum(call.before for call in those),
            after=sum(call.after for call in those),
        )

    def of_metric(
        self, kind: LossKind, verdict: Verdict, candidate: Candidate | None = None
    ) -> Headline:
        """Of what a metric counts more of, at the line that does it, where one is known."""
        calling = max(self._candidates, key=lambda one: _more_of(kind, one), default=Candidate())
        if _more_of(kind, calling) > 0:
            return self.of_calls(calling, kind)
        if kind is LossKind.TRANSFER:
            copying = [one for one in self._candidates if self._copied(one)]
            if copying:
                return self._transfer(max(copying, key=lambda one: len(self._copied(one))))
        before, after = (round(value or 0.0) for value in (verdict.baseline, verdict.measured))
        candidate = candidate or Candidate()
        if verdict.unit == "bytes":
            copied = float(after - before)
            return self.made(kind, candidate, what=verdict.metric, before=0, after=0, copied=copied)
        return self.made(kind, candidate, what=verdict.metric, before=before, after=after)

    def _of_kernels(self, candidate: Candidate) -> Headline:
        """Of what it launches: the reason that most of its change has."""
        told = self._precision(candidate)
        if told:
            now, formerly, family = told
            return self.made(
                LossKind.PRECISION, candidate, what=now, formerly=formerly, family=family
            )
        times = self._times(candidate)
        if times:
            return self.made(
                LossKind.REPEATED, candidate, what=self._most(candidate.added), times=times
            )
        parts = self._parts(candidate)
        kind = max(parts, key=lambda one: parts[one])
        if parts[kind] <= 0:
            kind = LossKind.LAUNCHES if candidate.bound else LossKind.SLOWER
        instead = self._instead(candidate)
        if instead and kind in (LossKind.LAUNCHES, LossKind.LAYOUT):
            now, formerly = instead
            return self.made(LossKind.ALGORITHM, candidate, what=now, formerly=formerly)
        if kind is LossKind.ALGORITHM and self._converts_otherwise(candidate):
            kind = LossKind.LAYOUT  # kernels for tensors in another format come with it
        if kind is LossKind.LAYOUT:
            return self._layout(candidate)
        if kind is LossKind.TRANSFER:
            return self._transfer(candidate)
        if kind is LossKind.ALGORITHM:
            names = [
                (self._of.new.keys[i][0], self._of.old.keys[j][0]) for i, j in candidate.replaced
            ]
            weights = [self._of.weight(i, j) for i, j in candidate.replaced]
            others = [(pair, w) for pair, w in zip(names, weights, strict=True) if len({*pair}) > 1]
            now, formerly = map(self._of.short, _largest(others))
            return self.made(kind, candidate, what=now, formerly=formerly)
        if kind is LossKind.LAUNCHES:
            again = self._again(candidate)
            kind = LossKind.REPEATED if again else kind
            return self.made(kind, candidate, what=self._most(candidate.added))
        return self.made(kind, candidate, what=self._slowest(candidate))

    def _parts(self, candidate: Candidate) -> dict[LossKind, float]:
        """How much of its change has which reason: nanoseconds, of operators launches."""
        parts = dict.fromkeys(
            (
                *(LossKind.LAYOUT, LossKind.TRANSFER, LossKind.ALGORITHM),
                *(LossKind.LAUNCHES, LossKind.SLOWER),
            ),
            0.0,
        )
        for i in candidate.added:
            parts[self._reason(self._of.new.keys[i][0])] += self._of.weight(i, None)
        for j in candidate.removed:
            parts[self._reason(self._of.old.keys[j][0])] += self._of.weight(None, j)
        for i, j in candidate.replaced:
            names = self._of.new.keys[i][0], self._of.old.keys[j][0]
            kind = self._reason(names[0])
            if kind is LossKind.LAUNCHES:
                kind = LossKind.SLOWER if names[0] == names[1] else LossKind.ALGORITHM
            parts[kind] += self._of.weight(i, j)
        for i, j in candidate.same:
            if self._of.new.keys[i] in self._moved:
                parts[LossKind.SLOWER] += self._of.weight(i, j)
        return parts

    def _reason(self, name: str) -> LossKind:
        """Why there is another number of launches of this kernel."""
        family = self._of.family(name)
        if family == COPY and "memset" not in name.lower():
            return LossKind.TRANSFER
        copying = self._copying and self._of.short(name) in _COPYING
        return LossKind.LAYOUT if family == LAYOUT or copying else LossKind.LAUNCHES

    def _instead(self, candidate: Candidate) -> tuple[str, str] | None:
        """The kernel that does most of what another one did, and that one; None if none did.

        A line does it otherwise where all its kernels of a family are gone, and others have come.
        """
        of, places = self._of, self._of.places
        if places is None or not candidate.added:
            return None

        def kinds(sequence: LaunchSequence, at: int, which: Iterable[int]) -> dict[int, object]:
            families = {place: of.family(sequence.keys[place][0]) for place in which}
            return {
                place: (places[at][place], family)
                for place, family in families.items()
                if family not in (LAYOUT, COPY)
            }

        still = set(kinds(of.new, 0, range(len(of.new.keys))).values())
        left = kinds(of.old, 1, candidate.removed)
        gone = [place for place, kind in left.items() if kind not in still]
        come = kinds(of.new, 0, candidate.added)
        if not gone or not come or len(candidate.added) > _UNFUSED * len(gone):
            return None
        now = _largest([(of.short(of.new.keys[i][0]), of.new.durations[i]) for i in come])
        formerly = _largest([(of.short(of.old.keys[j][0]), of.old.durations[j]) for j in gone])
        return now, formerly

    def _converts_otherwise(self, candidate: Candidate) -> bool:
        """Whether most of what changed are conversions of formats: some come, and others go."""
        new = [*candidate.added, *(i for i, _ in candidate.replaced)]
        old = [*candidate.removed, *(j for _, j in candidate.replaced)]
        come, gone = (
            [place for place in places if self._reason(keys[place][0]) is LossKind.LAYOUT]
            for places, keys in ((new, self._of.new.keys), (old, self._of.old.keys))
        )
        return bool(come and gone) and 2 * len(come + gone) >= len(new + old)

    def _precision(self, candidate: Candidate) -> tuple[str, str, str] | None:
        """Data type now and before, and the family of what has another one than before."""
        of = self._of
        if not of.timed:
            return None  # an operator's name has none, and its module's says nothing of it
        new = [*candidate.added, *(i for i, _ in candidate.replaced)]
        old = [*candidate.removed, *(j for _, j in candidate.replaced)]
        now, then = self._types(of.new, new), self._types(of.old, old)
        total = math.fsum(weight for types in now.values() for _, weight in types)
        usual = {precision(of.old.keys[j][0]) for _, j in candidate.same} - {""}
        best: tuple[float, str, str, str] | None = None
        for family, types in now.items():
            told = _largest(types)
            before = _largest(then[family]) if family in then else ""
            if not before and told == "float64" and told not in usual:
                before = min(usual, default="")
            weight = math.fsum(weight for one, weight in types if one == told)
            if told and before and told != before and weight >= _PRECISE * total:
                best = max(best or (0.0, "", "", ""), (weight, told, before, family))
        return best[1:] if best else None

    def _types(
        self, sequence: LaunchSequence, places: Iterable[int]
    ) -> dict[str, list[tuple[str, float]]]:
        """The data types of these launches by family, each with its time; without mere copies."""
        types: dict[str, list[tuple[str, float]]] = {}
        for place in places:
            name = sequence.keys[place][0]
            family = self._of.family(name)
            if family not in (LAYOUT, COPY):
                types.setdefault(family, []).append((precision(name), sequence.durations[place]))
        return types

    def _within(self, candidate: Candidate) -> tuple[list[int], list[int]]:
        """All launches of the function in the modules where it changed, now and before."""
        of = self._of
        if of.places is None:
            family = [
                [place for place, key in enumerate(s.keys) if of.family(key[0]) == candidate.family]
                for s in (of.new, of.old)
            ]
            return family[0], family[1]
        key = numbered(candidate.line)[0], candidate.function
        modules = self._modules(candidate)
        sides = (
            [
                place
                for place, (line, function) in enumerate(places)
                if (numbered(line)[0], function) == key and sequence.sites[place].module in modules
            ]
            for places, sequence in zip(of.places, (of.new, of.old), strict=True)
        )
        new, old = sides
        return new, old

    def _modules(self, candidate: Candidate) -> set[str]:
        """The modules in which it changed; "" is outside of all, which lines do not name."""
        of = self._of
        moved = [i for i, _ in candidate.same if of.new.keys[i] in self._moved]
        new = [*candidate.added, *(i for i, _ in candidate.replaced), *moved]
        sites = [*(of.new.sites[i] for i in new), *(of.old.sites[j] for j in candidate.removed)]
        return {*candidate.modules, *(site.module for site in sites)} or {""}

    def _times(self, candidate: Candidate) -> int | None:
        """How many times it does what it did once; None where it does something else."""
        if not candidate.function or candidate.replaced:
            return None
        of = self._of
        sides = self._within(candidate)
        # What is computed twice need not be differentiated twice.
        forward = [
            [place for place in places if not sequence.sites[place].backward]
            for places, sequence in zip(sides, (of.new, of.old), strict=True)
        ]
        new, old = forward if all(forward) else sides
        after = Counter(of.new.keys[i] for i in new)
        before = Counter(of.old.keys[j] for j in old)
        times = round(len(new) / len(old)) if old else 0
        if times < 2:
            return None
        alike = sum(min(after[key], times * count) for key, count in before.items())
        return times if alike >= _AGAIN * max(len(new), times * len(old)) else None

    def _again(self, candidate: Candidate) -> bool:
        """Whether most of what it launches more is what its modules launch already."""
        of = self._of
        if not candidate.function or len(candidate.replaced) > len(candidate.added) / 10:
            return False
        modules = self._modules(candidate)
        known = {
            of.new.keys[i]
            for i, _ in (*of.pairing.matched, *of.pairing.moved)
            if of.new.sites[i].module in modules
        }
        again = [i for i in candidate.added if of.new.keys[i] in known]
        weights = (
            math.fsum(of.weight(i, None) for i in launches) for launches in (again, candidate.added)
        )
        mine, every = weights
        distinct = {of.new.keys[i][0] for i in again}
        return len(distinct) >= _DISTINCT and mine >= _AGAIN * every > 0

    def _layout(self, candidate: Candidate) -> Headline:
        """Of the kernel that brings most into another memory format."""
        of = self._of
        changed: list[tuple[int, int | None]] = [(i, None) for i in candidate.added]
        changed += candidate.replaced
        changed += [pair for pair in candidate.same if of.new.keys[pair[0]] in self._moved]
        layout = [(i, j) for i, j in changed if self._reason(of.new.keys[i][0]) is LossKind.LAYOUT]
        what = _largest([(of.short(of.new.keys[i][0]), of.weight(i, j)) for i, j in layout])
        after, before = (
            sum(of.short(sequence.keys[place][0]) == what for place in places)
            for places, sequence in zip(self._within(candidate), (of.new, of.old), strict=True)
        )
        return self.made(
            LossKind.LAYOUT, candidate, what=what, before=before, after=after, family=LAYOUT
        )

    def _copied(self, candidate: Candidate, way: str = "") -> list[int]:
        """The copies that are new, or others than before, of the kind that takes most.

        Of those that go one `way`, where it is given.
        """
        of = self._of
        changed = (*candidate.added, *(i for i, _ in candidate.replaced))
        names = {i: of.new.keys[i][0] for i in changed}
        copies = [
            i for i in names if way in names[i] and self._reason(names[i]) is LossKind.TRANSFER
        ]
        most = _largest([(names[i], 1 + of.new.durations[i]) for i in copies]) if copies else ""
        return [i for i in copies if names[i] == most]

    def _transfer(self, candidate: Candidate, way: str = "") -> Headline:
        """Of copies, one `way` or any; that of a number to the host is a synchronisation."""
        of = self._of
        copies = self._copied(candidate, way)
        new, old = self._within(candidate)
        name = of.new.keys[copies[0]][0]
        mean = fmean(of.new.durations[i] for i in copies)
        waits = "DtoH" in name and "Pinned" not in name and 0 < mean <= _SCALAR
        return self.made(
            LossKind.SYNCHRONISATION if waits else LossKind.TRANSFER,
            candidate,
            what=name,
            family=COPY,
            before=sum(of.old.keys[j][0] == name for j in old),
            after=sum(of.new.keys[i][0] == name for i in new),
            copied=self._bytes(name, candidate),
        )

    def _bytes(self, name: str, candidate: Candidate) -> float | None:
        """How many more bytes are copied this way, where a verdict says so.

        It says so of the step: where others copy this way as well, nobody knows whose are how many.
        """
        of = self._of
        way, metric = next((one for one in _COPIED if re.search(one[0], name)), ("-", "-"))
        changed = (*of.pairing.added, *(i for i, _ in of.pairing.replaced))
        its = {*candidate.added, *(i for i, _ in candidate.replaced)}
        if any(re.search(way, of.new.keys[i][0]) and i not in its for i in changed):
            return None
        known = [
            verdict.measured - verdict.baseline
            for verdict in self._of.verdicts
            if verdict.metric.startswith(metric)
            and verdict.measured is not None
            and verdict.baseline is not None
        ]
        more = math.fsum(known)
        return more if more > 0 else None

    def _most(self, places: Iterable[int]) -> str:
        """The short names of these launches, those that take most first."""
        of = self._of
        totals = _sums(
            (of.short(of.new.keys[i][0]), of.new.durations[i] if self._of.timed else 1.0)
            for i in places
        )
        names = sorted(totals, key=lambda name: (-totals[name], name))
        more = len(names) - _NAMED
        return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")

    def _slowest(self, candidate: Candidate) -> str:
        """The kernel that takes most longer."""
        of, pairs = self._of, (*candidate.same, *candidate.replaced)
        longer = [(of.short(of.new.keys[i][0]), self._of.weight(i, j)) for i, j in pairs]
        return _largest(longer) if longer else ""

    def made(
        self,
        kind: LossKind,
        candidate: Candidate,
        *,
        what: str = "",
        formerly: str = "",
        times: int | None = None,
        before: int | None = None,
        after: int | None = None,
        line: str = "",
        modules: tuple[str, ...] = (),
        family: str = "",
        copied: float | None = None,
    ) -> Headline:
        if before is None or after is None:
            counted = () if kind in (LossKind.HOST, LossKind.UNKNOWN) else self._within(candidate)
            after, before = map(len, counted) if counted else (0, 0)
        step = self._of.step
        told = step is not None and step.slower
        return Headline(
            kind=kind,
            line=line or candidate.line,
            function=candidate.function,
            modules=modules or candidate.modules,
            what=what,
            formerly=formerly,
            family=family or candidate.family,
            times=times,
            before=before,
            after=after,
            bytes=copied,
            change=step.change if step and told else None,
            relative=step.relative if step and told else None,
            traced=candidate.change + candidate.idle if self._of.timed else None,
        )


_N = TypeVar("_N", bound="str | tuple[str, str]")


def _sums(weighted: Iterable[tuple[_N, float]]) -> dict[_N, float]:
    totals: dict[_N, float] = {}
    for name, weight in weighted:
        totals[name] = totals.get(name, 0.0) + weight
    return totals


def _largest(weighted: Iterable[tuple[_N, float]]) -> _N:
    """The name with most weight in all."""
    totals = _sums(weighted)
    return max(totals, key=lambda name: (totals[name], name))


def _kind_of_call(name: str) -> LossKind:
    if _WAITS.search(name):
        return LossKind.SYNCHRONISATION
    return LossKind.MEMORY if _ALLOCATES.search(name) else LossKind.HOST


def _more_of(kind: LossKind, candidate: Candidate) -> int:
    """How many more calls of this kind there are; those that are fewer make up for none."""
    more = (
        call.after - call.before for call in candidate.calls if _kind_of_call(call.name) is kind
    )
    return sum(count for count in more if count > 0)


def _kind_of_metric(metric: str) -> LossKind | None:
    return next((kind for says, kind in _COUNTED if says.search(metric)), None)
