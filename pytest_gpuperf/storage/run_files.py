"""Run files: the measurements and verdicts of one invocation, as JSON.

Also the choice of measurements where runs are named: the measurements of several runs,
each process once, and the measurements of tests that match a pattern.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible, other_units
from pytest_gpuperf.errors import GpuperfError, UsageFailure, meant, printable
from pytest_gpuperf.judge.tolerance import unreadable
from pytest_gpuperf.model.measurement import Measurement, Sample, Unsupported, grouped, title_of
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import data_files, files
from pytest_gpuperf.storage.files import Problem

SCHEMA = 1
_PLACE = "--gpuperf-run"
_CONFIGURED = ("pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "setup.py")
FOLDER = Path(".gpuperf") / "runs"
RETIRED = ("timeline", "gpcs", "sm_map")
"""Fields of a measurement and of its machine that only earlier versions wrote."""
_LISTED = 10
"""The most tests that a message lists; a suite may have hundreds."""
_REMEDY = "Measure again, or use another run. gpuperf changed nothing"


_SECRET_PARTS = (
    *("token", "secret", "password", "passwd", "passphrase", "pwd", "pat", "credential", "key"),
    *("auth", "authorization", "bearer", "cookie", "dsn", "webhook"),
)
"""Parts of the names of flags, settings and headers whose values are secret."""
_SECRET_NAME = re.compile(
    rf"(?:^|[^a-z])(?:{'|'.join(_SECRET_PARTS)})s?(?:$|[^a-z])"
    r"|(?:token|secret|password|passwd|apikey|accesskey|privatekey|credentials?)$",
    re.IGNORECASE,
)
_NAMED = re.compile(r"(?P<name>[^=]*?)(?P<between>=|: +)(?P<value>.+)", re.DOTALL)
_KNOWN_SECRETS = re.compile(
    r"(?<=://)[^/@\s]+(?=@)"
    r"|\b(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AKIA|eyJ)[\w.-]{12,}"
)
"""The user's login in a URL. Also tokens that are known by their first letters: the tokens of
GitHub, GitLab, Hugging Face, OpenAI, Slack and Amazon, and JSON web tokens."""
_MASK = "***"


class NoMatch(GpuperfError):
    """A pattern that no measured test matches. The message lists the tests. Exit code 1."""


def command_line(words: Sequence[str]) -> str:
    """A command for the run's file and reports: quoted for a shell, and without secrets."""
    return files.writable(shlex.join(without_secrets(words)))


def within(root: Path, words: Sequence[str]) -> list[str]:
    """The words of a command, without the folders outside of the repository in `root`.

    Paths in the repository become relative to its root. Of others only the last name stays:
    the place of a user's files tells who the user is.
    """
    return [_within(root, word) for word in words]


def _within(root: Path, word: str) -> str:
    name, between, value = word.partition("=")
    if not between or "/" in name:
        name, between, value = "", "", word
    path, colons, test = value.partition("::")
    if not path.startswith(("/", "~")):
        return word
    short = files.short(Path(path), root)
    kept = f".../{Path(path).name}" if short == path else short
    return f"{name}{between}{kept}{colons}{test}"


def without_secrets(words: Sequence[str]) -> list[str]:
    """The words of a command, with masked values where the name says that the value is secret.

    Also masked: a user's login in a URL, and tokens that are known by their form. A name stays, so
    that readers see which options the run had.
    """
    kept: list[str] = []
    for word in words:
        flag = kept[-1] if kept else ""
        separate = flag.startswith("--") and "=" not in flag and not word.startswith("-")
        kept.append(_MASK if separate and _SECRET_NAME.search(flag) else _without_secrets(word))
    return kept


def _without_secrets(word: str) -> str:
    named = _NAMED.fullmatch(word)
    if named is None:
        return _KNOWN_SECRETS.sub(_MASK, word)
    name, between, value = named["name"], named["between"], named["value"]
    # Of "tests/test_key.py::test_a[size" the name is "size".
    last = name if name.startswith("-") else re.split(r"[^\w-]", name)[-1]
    value = _MASK if _SECRET_NAME.search(last) else _without_secrets(value)
    return _KNOWN_SECRETS.sub(_MASK, name) + between + value


def pytest_arguments(command: str) -> list[str]:
    """The arguments of pytest in the run of this command, without the place of the run.

    Raises UsageFailure for a command of neither pytest nor `gpuperf record`, or for no command.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageFailure(
            f"its recorded command `{printable(command)}` cannot be parsed ({error})"
        ) from error
    if words[:2] == ["gpuperf", "record"]:
        return words[words.index("--") + 1 :] if "--" in words else []
    if words[:1] == ["gpuperf"]:
        raise UsageFailure(f"its recorded command `{printable(command)}` does not run pytest")
    kept = []
    is_place = False
    for word in words:
        if not is_place and word != _PLACE and not word.startswith(f"{_PLACE}="):
            kept.append(word)
        is_place = word == _PLACE and not is_place
    return kept


def launched(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words that start pytest ("torchrun ... -m", or none), and the arguments of pytest."""
    words = [*arguments]
    at = words.index("pytest") if words[:1] == ["torchrun"] and "pytest" in words else 0
    return words[:at], words[at + bool(at) :]


def new_file(root: Path) -> Path:
    """A name for a new run under `root`. Names sort by time, and no two runs share one."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
    return root / FOLDER / f"{stamp}-{os.getpid()}.json"


def project(folder: Path) -> Path:
    """The folder under which sessions in this folder save runs, as pytest's rootdir, or one above.

    The nearest that has runs; without any, the nearest with a file that pytest or a packager is
    configured in; else the folder itself. What lies above its repository is another project's.
    """
    above = [folder, *folder.parents]
    top = next((n for n, place in enumerate(above) if (place / ".git").exists()), len(above))
    above = above[: top + 1]
    runs = (place for place in above if (place / FOLDER).is_dir())
    configured = (place for place in above if any((place / name).exists() for name in _CONFIGURED))
    return next(runs, None) or next(configured, folder)


def newest(folder: Path) -> Path:
    """The latest run of the project that `folder` is in. Raises UsageFailure without one."""
    place = project(folder) / FOLDER
    saved = sorted(place.glob("*.json"))
    if not saved:
        raise UsageFailure(
            f"there is no run in {place}. Make one with pytest or `gpuperf record`, or name a run "
            "file"
        )
    return saved[-1]


def save(run: Run, file: Path) -> None:
    """Writes `run` as JSON, indented so that a diff is readable; compressed for a name in .xz.

    Raises BadFile, and leaves what is there, for more than is ever read.
    """
    text = json.dumps(files.to_plain(with_units(run)), indent=1, ensure_ascii=False) + "\n"
    _write(file, files.packed(text.encode(), file))


def save_draft(run: Run, file: Path) -> None:
    """Writes `run` with the same content, in a fraction of the time and in one line."""
    text = files.to_json(with_units(run)).encode()
    _write(file, files.packed(text, file, quickly=True))


def _write(file: Path, content: bytes) -> None:
    if file.parent.parts[-2:] == FOLDER.parts:
        files.ignored_by_git(file.parent.parent)
    files.write_atomically(file, content)


def with_units(run: Run) -> Run:
    """The run as written to a file: with the unit of each metric that was sampled."""
    known = catalogue().metrics
    sampled = {sample.metric for m in run.measurements for sample in m.samples}
    return replace(run, metric_units={name: known[name].unit for name in known if name in sampled})


def load(file: Path) -> Run:
    """The run in `file`. Raises BadFile or UsageFailure; the file is never changed.

    Metrics are known, in the catalogue's units, sampled once per phase, and have values that can
    have been measured. Suite, device and architecture name files.
    """
    try:
        data = files.read_json(file, _REMEDY)
    except FileNotFoundError:
        raise UsageFailure(f"{file}: no such run file") from None
    retired = (*catalogue().retired, *RETIRED)
    run = files.validate(data, Run, file, SCHEMA, _REMEDY, retired, _problems)
    return replace(run, metric_units={})


def merged(runs: Sequence[Run], command: str) -> Run:
    """One run with the measurements of several, each of them from another process.

    Verdicts are left out: each was about one process alone.
    """
    measurements = tuple(measurement for run in runs for measurement in run.measurements)
    return Run(SCHEMA, files.utc_now(), command, measurements)


def measurements_of(loaded: Sequence[tuple[Path, Run]]) -> list[Measurement]:
    """The measurements of these runs, which come with their files; no process counts twice.

    A process is in two runs when one file is named twice, or one run is a continued copy of
    another. Repeated measurements of one process in one run are more rounds, and stay. Raises
    UsageFailure when two runs hold different values of one process.
    """
    known: dict[tuple[str, str, str], tuple[Path, list[Measurement]]] = {}
    for file, run in loaded:
        here = grouped(run.measurements, lambda one: (one.test, one.name, one.process))
        for key, measured in here.items():
            first, before = known.setdefault(key, (file, measured))
            if [m.samples for m in before] != [m.samples for m in measured]:
                test, name, process = key
                raise UsageFailure(
                    f'{first} and {file} have different values for the measurement "{name}" of '
                    f"{test} in process {process}, so one file was edited. Name only the file to "
                    "be trusted, or record again"
                )
    return [measurement for _, measured in known.values() for measurement in measured]


def matching(measurements: Sequence[Measurement], patterns: Sequence[str]) -> list[Measurement]:
    """The measurements whose test matches any of `patterns`; all of them without a pattern.

    Raises NoMatch for a pattern that no test matches, whatever the others match.
    """
    tests = list(dict.fromkeys(measurement.test for measurement in measurements))
    for pattern in patterns:
        if not any(matches(test, pattern) for test in tests):
            raise NoMatch(
                f'no test of the run matches "{pattern}".{meant_of(pattern, tests)} The run '
                f"measured{listing(tests)}"
            )
    return [measurement for measurement in measurements if matches_any(measurement.test, patterns)]


def listing(names: Sequence[str]) -> str:
    """The first of these names, for the end of an error: a line each."""
    listed = [f"\n  {printable(name)}" for name in names[:_LISTED]]
    if more := len(names) - len(listed):
        listed.append(f"\n  and {more} more")
    return "".join(listed)


def meant_of(pattern: str, tests: Iterable[str]) -> str:
    """The likely meaning of a mistyped `pattern`: a node id, or a part of one; "" for none.

    The signs that stand for anything are left out of the comparison.
    """
    parts: dict[str, None] = {}
    for test in tests:
        function, _, parameters = title_of(test).partition("[")
        parts |= dict.fromkeys((test, *test.split("::"), function, *parameters.split("]")[:1]))
    return meant(pattern.strip("*?"), filter(None, parts))


def matches_any(test: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the node id, or there are no patterns."""
    return not patterns or any(matches(test, pattern) for pattern in patterns)


def matches(test: str, pattern: str) -> bool:
    """Whether a node id matches a pattern as the shell's, over the whole of it.

    Without `*` and `?`, a pattern that occurs in the node id matches too. Brackets mean what they
    mean in the shell, or themselves: node ids have them, and are pasted.
    """
    literal_brackets = pattern.replace("[", "[[]")
    if fnmatchcase(test, pattern) or fnmatchcase(test, literal_brackets):
        return True
    return pattern == test or not ({"*", "?"} & set(pattern) or pattern not in test)


def _problems(run: Run) -> Iterator[Problem]:
    """The problems of a run that its types do not exclude."""
    for name, problem in other_units(run.metric_units):
        yield f"metric_units/{name}", problem
    for number, verdict in enumerate(run.verdicts):
        for _, problem in other_units({verdict.metric: verdict.unit}):
            yield f"verdicts/{number}/unit", problem
    for number, measurement in enumerate(run.measurements):
        for where, problem in _measurement_problems(measurement):
            yield f"measurements/{number}/{where}", problem


def _measurement_problems(measurement: Measurement) -> Iterator[Problem]:
    device = measurement.fingerprint.device
    for where, name in (
        ("suite", measurement.suite),
        ("fingerprint/device/arch", device.arch),
        ("fingerprint/device/slug", device.slug),
    ):
        if problem := files.name_problem(name):
            yield where, problem
    yield from sample_problems(measurement.samples, measurement.unsupported)
    if measurement.window:
        for where, problem in sample_problems(measurement.window.samples):
            yield f"window/{where}", problem
    for name, problem in unreadable(measurement.tolerance, catalogue().metrics):
        yield f"tolerance/{name}", problem
    if measurement.kernels:
        for where, problem in data_files.problems(measurement.kernels):
            yield f"kernels/{where}", problem


def sample_problems(
    samples: Sequence[Sample], unsupported: Sequence[Unsupported] = ()
) -> Iterator[Problem]:
    """The problems of one process's samples, and of its list of missing metrics.

    A metric is known, is sampled once per phase, and has values that can have been measured.
    """
    places: dict[tuple[str, str], str] = {}
    by_phase: dict[str, dict[str, tuple[float, ...]]] = {}
    for index, sample in enumerate(samples):
        where, series = f"samples/{index}", f"{sample.metric} of {sample.phase}"
        if sample.metric not in catalogue().metrics:
            yield f"{where}/metric", f"unknown metric {sample.metric}"
        if not sample.values:
            yield f"{where}/values", f"no value for {series}"
        if (sample.phase, sample.metric) in places:
            yield where, f"{series} occurs twice"
        places[sample.phase, sample.metric] = where
        by_phase.setdefault(sample.phase, {})[sample.metric] = sample.values
    for phase, of_phase in by_phase.items():
        for metric, problem in impossible(phase, of_phase):
            yield f"{places[phase, metric]}/values", f"{metric} of {phase} is {problem}"
    for index, entry in enumerate(unsupported):
        if entry.metric not in catalogue().metrics:
            yield f"unsupported/{index}/metric", f"unknown metric {entry.metric}"
