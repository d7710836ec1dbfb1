"""`gpuperf history`: nights of run files as trends, changes of level and suspects."""

from __future__ import annotations

import html
import json
import os
import shlex
import shutil
import time
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any

import numpy as np
import pytest

from pytest_gpuperf import __main__
from pytest_gpuperf.commands.history import looked_back
from pytest_gpuperf.history import reading
from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.measurement import Canary, Conditions, Reading
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.corruption import unreadable
from tests.examples import A100, H200, TEST, measurement, run, verdict

NIGHTS, STEP_AT = 24, 15
START = date(2026, 3, 1)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Baselines of this repository are of tests of the same names."""
    monkeypatch.chdir(tmp_path)


def save(
    folder: Path,
    night: int,
    value: float,
    *,
    metric: str = "cycles",
    revision: str = "",
    unfit: bool = False,
    project: str = "",
    **changes: Any,
) -> Path:
    """One night's run; the driver is another one from STEP_AT on, the code every night."""
    software = {"driver": "570" if night < STEP_AT else "580"}
    process = f"{folder.name}-{night}"
    one = measurement({metric: [value] * 3}, process=process, software=software, **changes)
    under = replace(one.fingerprint, revision=revision or f"r{night:02}", project=project)
    one = replace(one, fingerprint=under)
    said = [replace(verdict(), outcome=type(verdict().outcome)("unfit"))] if unfit else []
    there = replace(run([one], said), created=f"{START + timedelta(days=night)}T03:00:00Z")
    file = folder / f"{night:03}.json"
    run_files.save_draft(there, file)
    return file


def cycles(night: int) -> float:
    noise = np.random.default_rng(night).normal() * 1e-3
    return float(4e8 * np.exp(noise) * (1.02 if night >= STEP_AT else 1))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of nights, of which the fourth was not measured and the sixth is unfit."""
    folder = tmp_path_factory.mktemp("runs")
    for night in range(NIGHTS):
        if night != 3:
            save(folder, night, cycles(night), unfit=night == 5)
    return folder


def kinds(*folders: Path) -> list[list[str]]:
    """The kinds of suspects of each event."""
    events = looked_back([*map(str, folders)]).events
    return [[one.kind.value for one in event.suspects] for event in events]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What it prints, in one line."""
    assert __main__.main(["history", *words]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_change_has_its_night_its_suspects_and_what_to_type_next(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, str(saved))
    assert text.startswith("24 nights, 2026-03-01 to 2026-03-24: 1 test on 1 device, 23 runs.")
    assert "2026-03-16 NVIDIA H200: 1 test changed, 1 worse" in text
    assert "suspect: driver 570 -> 580 suspect: code r14..r15 gpuperf compare" in text
    assert f"gpuperf compare {saved}/014.json {saved}/015.json --test" in text


def test_what_comes_from_nothing_is_told_without_a_number_and_is_no_creep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(NIGHTS):
        waits = 3.0 * (night >= STEP_AT)
        save(tmp_path, night, waits, metric="stream_synchronizations")
    text = printed(capsys, str(tmp_path))
    assert "test_training_step[tf32]: stream_synchronizations from 0 (0 -> 3)" in text
    assert "Creep" not in text


def test_what_noise_may_have_done_is_suspected_of_chance_too(tmp_path: Path) -> None:
    for night in range(NIGHTS):
        value = 4e8 + 16e5 * (-1) ** night
        save(tmp_path, night, value * (1.0095 if night >= STEP_AT else 1))
    assert kinds(tmp_path) == [["driver", "code", "chance"]]


def test_a_canary_that_moved_is_a_suspect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(2):
        read = [
            Reading(canary=Canary("c", {"l2_cycles": n * (1 + 0.2 * night)})) for n in (1e6, 2e6)
        ]
        save(tmp_path, night, 4e8, conditions=Conditions(*read))
    text = printed(capsys, str(tmp_path))
    assert "machine l2_cycles +20 % (1.5e+06 -> 1.8e+06) suggests" in text


def test_a_count_is_told_the_same_night_and_may_be_chance_until_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(2):
        save(tmp_path, night, 1e6 * (1 + night), metric="launches")
    text = printed(capsys, str(tmp_path))
    assert "launches x2" in text
    assert "suspect: code r00..r01 suspect: chance (a second night must confirm it)" in text


@pytest.mark.parametrize(
    ("gpus", "says"),
    [
        # Workers with a GPU each, whose tests change places.
        ([("a", "b"), ("b", "a")], "compared with 2026-03-01: code r00..r01"),
        ([("a", "b"), ("c", "b")], "compared with 2026-03-01: code r00..r01"),
        ([("a", "b"), ("c", "d")], "compared with 2026-03-01: code r00..r01; GPU b -> d"),
        ([("a", "b")], ""),
    ],
)
def test_the_last_night_is_held_against_the_one_before_where_a_night_has_several_gpus(
    gpus: list[tuple[str, str]], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night, both in enumerate(gpus):
        for number, gpu in enumerate(both):
            device = replace(H200, identity=gpu)
            save(tmp_path / str(number), night, 4e8, device=device, workload={"size": 64 * number})
    assert __main__.main(["history", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("last night (" in said) is bool(says)
    assert f"last night (2026-03-02), {says} " in f"{said} " if says else True


def test_nights_without_a_value_are_gaps_and_no_zeros(saved: Path) -> None:
    (series,) = looked_back([str(saved)]).series
    first = series.seen.days[0]
    assert series.gaps == {first + 3, first + 5}
    assert len(series.seen.days) == len(series.seen.values) == NIGHTS - 2
    assert min(series.seen.values) > 3.9e8


def test_broken_files_are_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(3):
        save(tmp_path, night, cycles(night))
    (tmp_path / "cut.json").write_text('{"schema": 1, "crea')
    (tmp_path / "text.json.xz").write_text("no xz")
    wrong = json.loads((tmp_path / "000.json").read_text())
    wrong["measurements"][0]["samples"][0]["values"] = [-1.0]
    (tmp_path / "negative.json").write_text(json.dumps(wrong))
    wrong["measurements"][0]["fingerprint"]["device"]["slug"] = "../../etc"
    (tmp_path / "place.json").write_text(json.dumps(wrong))
    past = looked_back([str(tmp_path)])
    err = capsys.readouterr().err
    for name in ("cut.json", "text.json.xz", "negative.json", "place.json"):
        assert f"{tmp_path / name}: " in err
    # Nobody asked for these very files.
    assert err.count("The history omits this file") == 4
    assert "Measure again" not in err
    assert len(past.source.problems) == 4
    assert len(past.series[0].seen.values) == len(past.source.files) == 3


def test_json_that_is_no_run_and_a_proof_are_neither_counted_nor_complained_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = tmp_path / "others"
    for place in (tmp_path, others):
        place.mkdir(exist_ok=True)
        for name, other in (("list", []), ("doctor", {"schema": 2, "measurable": True})):
            (place / f"{name}.json").write_text(json.dumps(other))
        shutil.copy(ROOT / "docs" / "runs" / "prove-first-test.json.xz", place)
    assert __main__.main(["history", str(others)]) == 4
    assert f"{others}: no file is a run" in capsys.readouterr().err
    file = save(tmp_path, 0, cycles(0))
    past = looked_back([str(tmp_path)])
    assert (past.source.files, past.source.problems) == ([file], ())
    assert len(past.series) == 1
    assert capsys.readouterr().err == ""


def test_odd_files_are_named_and_neither_block_nor_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "broken.json").symlink_to("nowhere")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "zero.json.xz").symlink_to("/dev/zero")
    for name in ("two\nlines\x1b[31m", "bytes\udcff"):
        (tmp_path / f"{name}.json").write_text("{")
    night = save(tmp_path, 0, 4e8)
    with socket(AF_UNIX) as listening:
        listening.bind("socket.json")
        words = ["history", str(tmp_path), "--output", "night.md", "--output", "night.html"]
        assert __main__.main(words) == 0
    out, err = capsys.readouterr()
    told = {line.partition(": ")[2] for line in err.splitlines()}
    assert all(line.startswith(f"{tmp_path}/") for line in told), told
    problems = sorted(line.removeprefix(f"{tmp_path}/").partition(": ")[::2] for line in told)
    assert [(name, said.partition(" (")[0].partition(".")[0]) for name, said in problems] == [
        ("broken.json", "no such file"),
        ("bytes\\xdcff.json", "line 1 column 2: invalid JSON"),
        ("fifo.json", "not a regular file"),
        ("loop.json", "cannot be read"),
        ("socket.json", "cannot be read"),
        (r"two\x0alines\x1b[31m.json", "line 1 column 2: invalid JSON"),
        ("zero.json.xz", "not a regular file"),
    ]
    for text in (out, *(Path(name).read_text("utf-8") for name in ("night.md", "night.html"))):
        assert text.replace("\n", "").isprintable()
    assert looked_back([str(tmp_path)]).source.files == [night]


def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    with unreadable(file := save(tmp_path, 0, 4e8)):
        problem = f"{file}: cannot be read (Permission denied)"
        assert reading.recollect([file]).problems == (problem,)


def test_a_command_to_type_quotes_the_names_of_files_whatever_they_are(tmp_path: Path) -> None:
    for night, name in enumerate(("a`;echo $(id);`", "b'\n`")):
        save(tmp_path, night, 1e6 * (1 + night), metric="launches").rename(f"{name}.json")
    assert __main__.main(["history", str(tmp_path), "--output", "night.md"]) == 0
    text = (tmp_path / "night.md").read_text(encoding="utf-8")
    (command,) = (line.strip("- `") for line in text.splitlines() if "gpuperf compare" in line)
    before, after = (f"{tmp_path}/{name}.json" for name in (r"a\x60;echo $(id);\x60", r"b' \x60"))
    assert shlex.split(command) == ["gpuperf", "compare", before, after, "--test", TEST]


@pytest.fixture
def two_projects(tmp_path: Path) -> Path:
    """The same test on the same nights in two projects, and once in a run that names none."""
    for night in range(3):
        for project, value in (("train", 4e8), ("model/other", 5e8)):
            if (night, project) != (2, "model/other"):
                save(tmp_path / project, night, value, project=project)
    save(tmp_path / "old", 0, 4e8)
    return tmp_path


@pytest.mark.parametrize(
    ("projects", "values", "left_out"),
    [
        ([], [4e8] * 3, "2 runs of the project model/other left out: this is the history of train"),
        (["model/other"], [4.5e8, 5e8], "3 runs of the project train left out: this is the"),
        (["train", "model/other"], [4e8, 4.5e8, 4e8], ""),
    ],
)
def test_the_history_is_of_one_project_and_names_the_others(
    projects: list[str], values: list[float], left_out: str, two_projects: Path
) -> None:
    """The latest run's, or those that are named: one that was renamed is one series."""
    past = looked_back([str(two_projects)], projects=projects)
    (series,) = past.series
    assert series.seen.values == values
    assert [problem[: len(left_out)] for problem in past.source.problems] == [left_out] * bool(
        left_out
    )


def test_the_report_of_a_run_has_the_history_of_its_project(
    two_projects: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(two_projects / "model" / "other" / "000.json"), "--output", "r.md"]
    assert __main__.main([*words, "--history", str(two_projects)]) == 0
    remedy = "To see them: gpuperf history --project train"
    assert remedy in capsys.readouterr().err
    assert remedy in (two_projects / "r.md").read_text(encoding="utf-8")


def test_a_process_that_is_in_two_files_counts_once(tmp_path: Path) -> None:
    file = save(tmp_path, 0, 4e8)
    (tmp_path / "copy.json").write_bytes(file.read_bytes())
    (series,) = looked_back([str(tmp_path)]).series
    assert series.seen.values == [4e8]


def test_creep_is_told_by_no_night_and_against_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(30):
        save(tmp_path, night, 4e8 * (1 + 0.0006 * night))
    assert __main__.main(["history", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Creep, which is many small slowdowns that add up:" in text
    assert "in 30 nights since the first nights, 2026-03-01" in text
    assert "No level changed" in text
    page, summary = tmp_path / "page.html", tmp_path / "page.md"
    assert __main__.main(["history", str(tmp_path), f"--output={page}", f"--output={summary}"]) == 0
    for file in (page, summary):
        assert "Slow creep got worse in the last 30 days" in file.read_text("utf-8")


def test_the_page_is_one_file_without_a_script(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "history.html"
    assert __main__.main(["history", f"{saved}/*.json", "--output", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert "script-src 'none'" in html.unescape(text)
    assert "<script" not in text
    assert text.count("<polyline") >= 3  # the gaps divide the line
    assert "<li>suspect: driver 570 -&gt; 580</li>" in text
    capsys.readouterr()


def test_a_test_that_was_measured_on_an_outlying_night_alone_has_no_level(tmp_path: Path) -> None:
    for night in range(STEP_AT):
        for name in ("first", "second", *(["once"] if night == 8 else [])):
            value = cycles(night) * (1.5 if night == 8 else 1)
            save(tmp_path / name, night, value, test=f"a.py::test_{name}")
    levels = [one.trend.levels for one in looked_back([str(tmp_path)]).series]
    assert sorted(map(len, levels)) == [0, 1, 1]
    assert __main__.main(["history", str(tmp_path), "--output", "night.html"]) == 0


def dated(file: Path, created: str, other: Path, **fields: Any) -> Path:
    """The run of a file in another one, as if it was made then by another process."""
    run = json.loads(file.read_text(encoding="utf-8"))
    run["measurements"][0]["process"] = other.name
    other.write_text(json.dumps({**run, "created": created, **fields}), encoding="utf-8")
    return other


def test_a_run_from_the_future_is_named_and_hides_no_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(NIGHTS):
        file = save(tmp_path, night, cycles(0) * (1.3 if night >= 20 else 1))
    later = dated(file, "9998-06-01T03:00:00Z", tmp_path / "later.json")
    words = ["history", str(tmp_path), "--output", "night.md", "--output", "night.html"]
    assert __main__.main(words) == 0
    when = "9998-06-01T03:00:00+00:00, which is in the future"
    problem = f"{later} is dated {when}. The history omits this file"
    out, err = capsys.readouterr()
    assert f"gpuperf: {problem}\n" in err
    assert "24 nights, 2026-03-01 to 2026-03-24" in " ".join(out.split())
    text = (tmp_path / "night.md").read_text(encoding="utf-8")
    assert text.startswith("## These got worse in the last 30 days\n")
    assert "**2026-03-21, NVIDIA H200**: 1 test changed, 1 worse" in text
    assert problem in text.replace("\\", "")
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert "since 2026-03-21</h1>" in page
    assert problem in page


def test_a_run_is_left_out_until_its_date_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = datetime(2026, 3, 1, 3, tzinfo=timezone.utc).timestamp()
    save(tmp_path, 0, 4e8)
    named = reading.run_files_of([str(tmp_path)])
    for later, nights in ((-1, 0), (0, 1), (1, 1), (-1, 0)):
        monkeypatch.setattr(time, "time", lambda now=made + later: now)
        past = reading.recollect(named)
        assert (len(past.series), len(past.problems)) == (nights, 1 - nights)


@pytest.mark.parametrize(
    ("created", "says"),
    [
        ("0001-01-01T00:00:00+14:00", "before 1970"),
        ("9999-12-31T23:00:00-14:00", "in the future"),
    ],
)
def test_a_date_that_no_run_can_have_is_named(created: str, says: str, tmp_path: Path) -> None:
    file = dated(save(tmp_path, 0, 4e8), created, tmp_path / "other.json")
    past = reading.recollect([file])
    problem = f"{file} is dated {created}, which is {says}. The history omits this file"
    assert (past.series, past.problems) == ((), (problem,))


def test_a_night_of_a_killed_pytest_is_said_to_be_partial(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = {"ran": 6, "collected": 7, "signal": 9}
    last = dated(
        saved / "023.json", "2026-03-25T03:00:00Z", tmp_path / "024.json", unfinished=killed
    )
    words = ["history", str(saved), str(last), "--output", "night.md", "--output", "night.html"]
    partial = f"2026-03-25 is partial: signal 9 ended pytest after 6 of 7 tests ({last})"
    assert __main__.main(words) == 0
    printed = capsys.readouterr().out
    assert partial.replace(" ", "") in "".join(printed.split())  # a long path is broken, too
    first = (tmp_path / "night.md").read_text(encoding="utf-8").splitlines()[2]
    assert first.replace("\\", "") == f"- {partial}"
    assert partial in (tmp_path / "night.html").read_text(encoding="utf-8")


SUMMARY = """\
## These got worse in the last 30 days

- **2026-03-16, NVIDIA H200**: 1 test changed, 1 worse
  - test\\_training\\_step\\[tf32\\]: cycles +1.97 % (400.01 M -\\> 407.85 M)
  - suspect: driver 570 -\\> 580
  - suspect: code r14..r15
  - `gpuperf compare RUNS/014.json RUNS/015.json --test 'suites/meddpm/test_training.py::test_training_step[tf32]'`
  - `git log --oneline r14..r15`
- last night (2026-03-24), compared with 2026-03-23: code r22..r23

| test | device | last 30 days | now | last change |
| --- | --- | --- | --- | --- |
| test\\_training\\_step\\[tf32\\]: cycles | NVIDIA H200 | ▁▁▁·▁·▁▁▁▁▁▁▁▂▁│█████████ | 407.85 M | +1.97 % since 2026-03-16 |
"""  # noqa: E501


def test_a_summary_says_since_when_who_and_what_to_type_next(saved: Path, tmp_path: Path) -> None:
    assert __main__.main(["history", str(saved), "--output", "night.md"]) == 0
    said = (tmp_path / "night.md").read_text(encoding="utf-8").replace(str(saved), "RUNS")
    assert said == SUMMARY
    # The same at the end of a run's report, and beside its tests on its page.
    words = ["report", str(saved / "023.json"), "--history", str(saved)]
    assert __main__.main([*words, "--output", "run.md", "--output", "run.html"]) == 0
    told = (tmp_path / "run.md").read_text(encoding="utf-8").replace(str(saved), "RUNS")
    assert told.startswith("# gpuperf: ")
    assert told.endswith(f"\n\n{SUMMARY}")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert '<h2 id="since">These got worse in the last 30 days</h2>' in page
    assert page.count('<svg class="nights spark"') == 1


def test_what_to_type_next_is_for_the_test_that_costs_most_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(NIGHTS):
        for name, ms, slower in (("costly", 1000.0, 1.05), ("small", 1.0, 1.5)):
            value = ms * cycles(0) / 4e8 * (slower if night >= STEP_AT else 1)
            save(tmp_path / name, night, value, metric="step_time", test=f"a.py::test_{name}")
    text = printed(capsys, str(tmp_path))
    assert text.index("test_costly: step_time +5.00 %") < text.index(
        "test_small: step_time +50.00 %"
    )
    assert "costly/015.json --test a.py::test_costly" in text
    assert "--test a.py::test_small" not in text


def test_on_a_cpu_a_time_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for night in range(NIGHTS):
        value = cycles(night) * (1 if night < STEP_AT else 2)
        save(tmp_path, night, value, metric="wall_time", device=portable_device())
    text = printed(capsys, str(tmp_path), "--output", "night.html")
    assert "No level changed" in text
    assert "<svg" not in (tmp_path / "night.html").read_text(encoding="utf-8")


def test_where_the_code_is_suspected_the_commit_is_one_command_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(NIGHTS):
        file = save(tmp_path, night, cycles(night))
        file.write_text(file.read_text().replace('"580"', '"570"'), encoding="utf-8")
    text = printed(capsys, str(tmp_path), "--output", "night.md")
    assert "only the code changed: r14..r15" in text
    bisect = "gpuperf bisect r14 r15 -- 'suites/meddpm/test_training.py::test_training_step[tf32]'"
    assert bisect in text
    assert f"  - `{bisect}`\n" in (tmp_path / "night.md").read_text(encoding="utf-8")


def test_what_another_workload_changed_is_held_against_nothing_else(
    saved: Path, tmp_path: Path
) -> None:
    """Another test works on more every ninth night, on which the code is another one, too."""
    for night in range(NIGHTS):
        size = 1 + night // 9
        save(tmp_path, night, 4e8 * size, test="test_a.py::test_size", workload={"size": size})
    assert kinds(saved, tmp_path) == [["workload"], ["driver", "code"], ["workload"]]


def test_a_test_that_was_not_measured_that_night_changed_with_the_others(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in range(NIGHTS):
        if night != STEP_AT:
            save(tmp_path, night, cycles(night), test="test_a.py::test_late")
    assert "2026-03-16 NVIDIA H200: 2 tests changed, 2 worse" in printed(
        capsys, str(saved), str(tmp_path)
    )


@pytest.mark.parametrize("alike", [True, False])
def test_what_one_change_did_on_several_devices_is_told_once(
    alike: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the same night, of the same test, by the same suspect; else each by itself."""
    for device in (H200, A100):
        for night in range(NIGHTS):
            late = night >= (STEP_AT if alike or device == H200 else STEP_AT + 2)
            size = cycles(0) * (1 + 1e-5 * night) * (1.02 if late else 1)
            save(tmp_path / device.slug, night, size, device=device)
    text = printed(capsys, str(tmp_path), "--output", "night.html")
    both = f"{A100.name}, {H200.name}: 1 test changed, 1 worse"
    page = (tmp_path / "night.html").read_text(encoding="utf-8")
    assert (both in text, both in page) == (alike, alike)
    assert f"{A100.name}, last night (2026-03-24), compared with 2026-03-23: " in text
    assert page.count("gpuperf compare") == (1 if alike else 2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere has no run file"),
        (["RUNS", "--output", "a.pdf"], '--output a.pdf: ".pdf" is not a report format'),
        (
            ["RUNS", "--test", "other"],
            "no test matches --test other. The history has test_training",
        ),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], says: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["history", *(word.replace("RUNS", str(saved)) for word in words)]) == 4
    assert says in capsys.readouterr().err


def test_two_revisions_of_one_night_are_two_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for night in (0, 1, 3):
        save(tmp_path, night, cycles(night))
    for night in (0, 1):
        save(tmp_path / "again", night, cycles(night), revision=f"s{night}")
    save(tmp_path, 2, cycles(2), test=f"{TEST}-other")
    text = printed(capsys, str(tmp_path), "--test", TEST)
    assert text.startswith("4 nights, ")
    assert "5 values, noise" in text
    assert "; 1 night without a value" in text
