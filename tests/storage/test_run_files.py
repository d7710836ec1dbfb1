"""Run files: what is saved comes back, what cannot be trusted is refused, and which are meant."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import recorded
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.measurement import Conditions, Measurement, Reading
from pytest_gpuperf.model.result import Expectation, Outcome, Run
from pytest_gpuperf.storage import files, run_files
from tests import strategies
from tests.corruption import Wrong, changed, is_named, refusal, unreadable
from tests.examples import TEST, measurement, run, verdict

SAVED = run(
    [
        measurement(
            {"cycles": [437_000_000.0, 437_000_100.5], "ipc": [2.5, 2.25]},
            phases={"forward": {"cycles": [100.0]}},
            unsupported={"l2_hit_rate": "no counters"},
            conditions=Conditions(Reading(sm_clock_mhz=1980), Reading(power_watts=500.5)),
        ),
        measurement(process="p2"),
    ],
    [verdict()],
)
PLAIN: Any = files.to_plain(SAVED)
FIRST = ("measurements", 0)
SAMPLES = (*FIRST, "samples")


# Round trip


@strategies.whole_files
@given(run=strategies.run_files)
def test_a_run_that_was_saved_comes_back_the_same(shared: Path, run: Run) -> None:
    run_files.save(run, shared)
    assert run_files.load(shared) == run


def test_a_saved_run_is_readable_text_with_every_bit_in_the_place_of_the_old_one(
    file: Path,
) -> None:
    file.write_text("something else")
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 2.0**53 + 2, -0.0]
    run_files.save(run([measurement({"copies": values}, test="test_größe.py::test_x")]), file)
    text = file.read_text(encoding="utf-8")
    assert "größe" in text
    assert text.count("\n") > 20
    assert text.endswith("}\n")
    assert list(file.parent.iterdir()) == [file]
    loaded = run_files.load(file).measurements[0].samples[0].values
    assert [value.hex() for value in loaded] == [value.hex() for value in values]


@pytest.mark.parametrize("recording", ["h200-meddpm.json", "h200-tf32-broken.json.xz"])
def test_a_draft_of_what_was_recorded_says_the_same(recording: str, tmp_path: Path) -> None:
    """Verdicts, expectations and attributions too; an empty one is a run of nothing."""
    whole = recorded.run(f"docs/runs/{recording}")
    for results in (whole.results(), ()):
        draft = whole.with_results(results)
        run_files.save_draft(draft, tmp_path / recording)
        assert run_files.load(tmp_path / recording) == draft


def test_what_an_older_run_has_of_what_is_measured_no_more_is_dropped(file: Path) -> None:
    said = {"cpu_cycles": [1.0], "cpu_ipc": [2.0]}
    held = (Outcome.HOLDS, "within")
    older = replace(
        SAVED,
        measurements=(
            measurement({"cycles": [1.0], **said}, phases={"forward": said}),
            measurement({"cycles": [1.0]}, process="p2", unsupported={"cpu_instructions": "none"}),
        ),
        verdicts=(verdict(), replace(verdict(), metric="cpu_ipc")),
        expectations=(Expectation(TEST, "cpu_ipc", "instructions/cycle", "step", 1, None, *held),),
    )
    data = files.to_plain(older)
    data["measurements"][0]["timeline"] = {"samples": 2, "series": {"sm_active": [1.0, None]}}
    file.write_text(json.dumps(data), encoding="utf-8")
    kept = [measurement({"cycles": [1.0]}, process=process) for process in ("p1", "p2")]
    assert run_files.load(file) == run(kept, [verdict()])


# What is refused


def test_what_cannot_be_read_is_named(tmp_path: Path, file: Path) -> None:
    def says(place: Path, problem: str) -> None:
        with pytest.raises(UsageFailure, match=re.escape(f"{place}: {problem}")):
            run_files.load(place)

    says(file, "no such run file")
    says(tmp_path, "cannot be read (Is a dir")
    says(Path(os.devnull), "not a regular file")
    os.mkfifo(file)  # nobody writes into it
    says(file, "not a regular file")
    file.unlink()
    run_files.save(SAVED, file)
    with unreadable(file):
        says(file, "cannot be read (Permission denied)")


@settings(max_examples=25)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_run_that_was_cut_short_is_refused(shared: Path, share: float) -> None:
    text = json.dumps(PLAIN)
    shared.write_text(text[: int(share * len(text))])
    assert re.search(r"line 1 column \d+: invalid JSON", refusal(run_files.load, shared, BadFile))


def test_what_is_no_run_is_refused(file: Path) -> None:
    for content, message in (
        (b"", "line 1 column 1: invalid JSON"),
        (b"[" * 200_000, "cannot be read: maximum recursion depth"),
        (b'{"schema": 1,\n "command": "\xff"}', "byte 27: not UTF-8 text"),
        (b"\xef\xbb\xbf{}", "invalid JSON (Unexpected UTF-8 BOM"),
        (b"[]", "expected a mapping, found list"),
        (b"null", "expected a mapping, found NoneType"),
        (b"{}", "schema: schema version None, but this version of gpuperf reads 1"),
    ):
        file.write_bytes(content)
        assert message in refusal(run_files.load, file, BadFile), content[:40]


INFINITE, NAN = float("inf"), float("nan")
WRONG: Wrong = [
    (("schema",), 2, None, "Install the version of pytest-gpuperf that wrote it"),
    (("extra",), 1, None, "Unexpected keyword"),
    ((*SAMPLES, 0, "values", 1), NAN, None, "finite number"),
    ((*SAMPLES, 0, "values", 0), INFINITE, None, "finite number"),
    ((*SAMPLES, 1, "values"), [], None, "no value for ipc of step"),
    ((*SAMPLES, 1, "metric"), "cycels", None, "unknown metric cycels"),
    ((*SAMPLES, 1, "metric"), "cycles", (*SAMPLES, 1), "cycles of step occurs twice"),
    ((*FIRST, "unsupported", 0, "metric"), "cycels", None, "unknown metric"),
    (("verdicts", 0, "outcome"), "fine", None, "'regressed'"),
    (("verdicts", 0, "unit"), "s", None, 'in "s", but this version measures it in "cycles"'),
    (("metric_units",), {"ipc": "%"}, ("metric_units", "ipc"), 'in "%", but this version'),
    ((*SAMPLES, 0, "values", 1), -1e9, (*SAMPLES, 0, "values"), "-1e+09 cycles, which cannot be"),
    ((*SAMPLES, 0, "values", 0), 0, (*SAMPLES, 0, "values"), "cycles of step is 0 cycles, which"),
    *(
        ((*FIRST, "suite"), name, None, "not a valid name. Use letters, digits")
        for name in ("../../../../escaped/evil", "/abs/evil", "a\nb", "", " a", "a ", "..")
    ),
    ((*FIRST, "suite"), "x" * 201, None, "name of 201 bytes is longer than 200"),
    ((*FIRST, "fingerprint", "device", "slug"), "..", None, '".." is not a valid name'),
    (
        (*FIRST, "fingerprint", "device", "arch"),
        "sm90/../..",
        None,
        '"sm90/../.." is not a valid name',
    ),
    (("verdicts", 0, "change"), -INFINITE, None, "finite number"),
]


def test_a_wrong_entry_is_named(file: Path) -> None:
    def written(plain: object) -> Path:
        file.write_text(json.dumps(plain))
        return file

    is_named(run_files.load, written, PLAIN, WRONG)
    file.write_text(json.dumps(PLAIN).replace("437000100.5", "1e400"))
    assert "measurements/0/samples/0/values/1: " in refusal(run_files.load, file, BadFile)


def test_counts_may_be_zero_where_a_step_can_have_none_and_shares_have_an_end(file: Path) -> None:
    step = {"cycles": [1.0], "launches": [0.0], "instructions": [0.0], "copies": [0.0, -0.0]}
    idle = run([measurement(step, phases={"optimizer": {"cycles": [0.0]}})])
    run_files.save(idle, file)
    assert run_files.load(file) == idle
    launching = {"cycles": [1.0], "launches": [1.0]}
    for series, problem in (
        ({**launching, "instructions": [1.0, 0.0]}, "instructions of step is 0 instructions"),
        ({**launching, "kernel_time": [1.0, 0.0]}, "kernel_time of step is 0 ns"),
        ({"cycles": [1.0], "launches": [0.0], "copy_overlap": [1.0, 0.0]}, ""),
        ({"copy_overlap": [100.0]}, ""),
        ({"copy_overlap": [101.0]}, "which is not a percentage"),
        ({"l2_hit_rate": [1000.0]}, ""),
        ({"l2_hit_rate": [1001.0]}, "which is not a percentage"),
    ):
        run_files.save(run([measurement(series)]), file)
        if problem:
            assert problem in refusal(run_files.load, file, BadFile)
        else:
            run_files.load(file)


def test_suites_may_be_called_as_folders_are(file: Path) -> None:
    names = ("x", "test_a.b", "convnext_ddpm", "GPU tests", "c++", "größe", "日本語", "-x")
    named = run([measurement(suite=suite) for suite in names])
    run_files.save(named, file)
    assert run_files.load(file) == named


@settings(max_examples=50)
@given(data=st.data())
def test_no_single_broken_entry_goes_unnoticed_or_raises_anything_else(
    shared: Path, data: st.DataObject
) -> None:
    path: list[str | int] = []
    here: Any = PLAIN
    while isinstance(here, dict | list) and here and (not path or data.draw(st.booleans())):
        children = here if isinstance(here, dict) else dict(enumerate(here))
        part = data.draw(st.sampled_from(list(children)))
        path.append(part)
        here = children[part]
    shared.write_text(json.dumps(changed(PLAIN, path, {"": [None]})))
    assert ": ".join((str(shared), str(path[0]))) in refusal(run_files.load, shared, BadFile)


# Names and merging


def test_the_newest_run_is_the_last_by_name(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"no run in .*runs.*`gpuperf record`"):
        run_files.newest(tmp_path)
    folder = tmp_path / run_files.FOLDER
    folder.mkdir(parents=True)
    for name in ("20260301T120000Z-9.json", "20260302T000000Z-1.json", "20260228T235959Z-5.json"):
        (folder / name).touch()
    (folder / "notes.txt").touch()
    assert run_files.newest(tmp_path).name == "20260302T000000Z-1.json"
    file = run_files.new_file(tmp_path)
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{6}Z-\d+\.json", file.name)
    run_files.save(SAVED, file)
    assert run_files.newest(tmp_path) == file


def test_merged_runs_keep_every_measurement_and_no_verdict() -> None:
    one, other = run([measurement(process="p1")], [verdict()]), run([measurement(process="p2")])
    merged = run_files.merged([one, other], "gpuperf record")
    assert merged.measurements == (*one.measurements, *other.measurements)
    assert merged.verdicts == ()
    assert (merged.schema, merged.command) == (run_files.SCHEMA, "gpuperf record")


# Patterns of tests


def test_a_pattern_is_a_part_of_a_node_id_or_the_shell_s() -> None:
    longer = TEST.replace("tf32", "tf32_channels_last")
    for pattern, matches, matches_longer in (
        (TEST, True, False),  # pasted
        ("test_training_step[tf32]", True, False),  # its end, pasted
        ("[tf32]", True, False),
        ("meddpm", True, True),  # a part of it
        ("*", True, True),
        ("*tf32*", True, True),
        ("suites/*::test_training_step*", True, True),
        ("*::test_training_step[tf32]", True, False),  # brackets as they are written
        ("*step[[]tf32]", True, False),  # brackets as the shell has them
        ("*step?tf32?", True, False),
        ("tf64", False, False),
        ("test_training_step[tf32_channels_last]", False, True),
        ("test_*", False, False),  # a pattern is about the whole node id
        ("*meddpm", False, False),
        ("TF32", False, False),
        ("step[channels]", False, False),
    ):
        assert run_files.matches(TEST, pattern) is matches, pattern
        assert run_files.matches(longer, pattern) is matches_longer, pattern


@given(
    test=st.text(st.sampled_from("ab/:[]*?-!"), min_size=1, max_size=12),
    start=st.integers(0, 12),
    end=st.integers(0, 12),
)
def test_every_node_id_matches_itself_and_its_parts(test: str, start: int, end: int) -> None:
    assert run_files.matches(test, test)
    assert run_files.matches(test, "*")
    part = test[start:end]
    assert {"*", "?"} & set(part) or run_files.matches(test, part)


def named(*tests: str) -> list[Measurement]:
    """A measurement per test."""
    return [measurement(test=test) for test in tests]


def test_all_are_meant_that_any_pattern_matches_and_one_that_nothing_does_is_refused() -> None:
    four = named("a1", "b1", "c1", "a2")
    assert run_files.matching(four, []) == four
    assert [m.test for m in run_files.matching(four, ["c", "a*"])] == ["a1", "c1", "a2"]
    ten = [f"t{number}" for number in range(10)]
    for tests, patterns, shown in (
        (["a", "b", "a"], ["x"], ["a", "b"]),
        (["a", "b", "a"], ["a", "x"], ["a", "b"]),
        (["a", "b", "a"], ["x", "*"], ["a", "b"]),
        (ten, ["x"], ten),
        ([*ten, "u"], ["x"], [*ten, "and 1 more"]),
        ([*ten, *(f"u{number}" for number in range(290))], ["x"], [*ten, "and 290 more"]),
    ):
        with pytest.raises(run_files.NoMatch) as caught:
            run_files.matching(named(*tests), patterns)
        heading, *lines = str(caught.value).splitlines()
        assert heading == 'no test of the run matches "x". The run measured'
        assert lines == [f"  {line}" for line in shown]


def test_what_may_have_been_meant_is_a_part_of_a_node_id() -> None:
    tests = ["suites/meddpm/test_training.py::test_training_step[tf32]", "a.py::C::test_other"]
    for pattern, meant in (
        ("trainin_step", "test_training_step"),
        ("*test_trainingstep[tf32]", "test_training_step[tf32]"),
        ("*tf23*", "tf32"),
        ("suites/medpm/test_training.py", "suites/meddpm/test_training.py"),
        ("test_othr", "test_other"),
        ("zzz", ""),
    ):
        said = f' Did you mean "{meant}"?' if meant else ""
        assert run_files.meant_of(pattern, tests) == said


# Several runs

A, B = Path("a.json"), Path("b.json")


def test_processes_of_several_runs_come_together_in_their_order() -> None:
    different = [measurement(test="a"), measurement(test="b"), measurement(test="b", name="x")]
    twice = [measurement({"cycles": [1.0]}), measurement({"cycles": [3.0]})]
    noted = replace(
        twice[0], fingerprint=replace(twice[0].fingerprint, measured="2026-03-01T00:00:00Z")
    )
    for again in (A, B):
        for one, other, expected in (
            (different[:2], different[2:], different),
            # A run that was continued has the processes of the one it continues.
            (different[:2], different, different),
            (different, different[:2], different),
            # What a process measured twice in one run stays; beside the values runs may differ.
            (twice, twice, twice),
            (twice[:1], [noted], twice[:1]),
        ):
            assert run_files.measurements_of([(A, run(one)), (again, run(other))]) == expected


def test_a_process_with_two_values_is_refused() -> None:
    one = measurement({"cycles": [1.0]})
    for others in ([measurement({"cycles": [2.0]})], [one, one]):
        with pytest.raises(
            UsageFailure, match=r"a\.json and b\.json have different values .* in process p1, so"
        ):
            run_files.measurements_of([(A, run([one])), (B, run(others))])


# Secrets


def test_of_a_folder_that_is_none_of_the_repository_s_the_last_name_is_kept() -> None:
    """Of what is in it, the way from its root."""
    words = {
        "suites/meddpm": "suites/meddpm",
        "/home/ada/repository/suites/meddpm": "suites/meddpm",
        "/home/ada/repository/a.py::test[/home/ada]": "a.py::test[/home/ada]",
        "--gpuperf-run=/home/ada/runs/one.json": "--gpuperf-run=.../one.json",
        "--gpuperf-run=out/one.json": "--gpuperf-run=out/one.json",
        "cache_dir=/scratch/ada/cache": "cache_dir=.../cache",
        "/scratch/ada/ini/pytest.ini": ".../pytest.ini",
        "~/pytest.ini": ".../pytest.ini",
        "-k": "-k",
        "one or / two": "one or / two",
        "/home/ada/repository": ".",
    }
    assert run_files.within(Path("/home/ada/repository"), [*words]) == [*words.values()]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--api-token=abc", "-x"], ["--api-token=***", "-x"]),
        (["--api-token", "abc", "tests"], ["--api-token", "***", "tests"]),
        (["--API_KEY=a=b"], ["--API_KEY=***"]),
        (["--apiToken=abc"], ["--apiToken=***"]),
        (["--db-password", "abc"], ["--db-password", "***"]),
        (["--auth=me:abc"], ["--auth=***"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["-o", "service_secret=abc"], ["-o", "service_secret=***"]),
        (["--override-ini=service_secret=abc"], ["--override-ini=service_secret=***"]),
        (["--env", "AWS_ACCESS_KEY=abc"], ["--env", "AWS_ACCESS_KEY=***"]),
        (["--header", "Authorization: Bearer abc"], ["--header", "Authorization: ***"]),
        (["--url=https://me:abc@host/x"], ["--url=https://***@host/x"]),
        (["--url", "https://abc@host/x"], ["--url", "https://***@host/x"]),
        (["--url=https://host/x?size=1&token=abc"], ["--url=https://host/x?size=1&token=***"]),
        (["--hub", "hf_abcdefghijklmnop"], ["--hub", "***"]),
        (["ghp_abcdefghijklmnopqrst"], ["***"]),
        *(
            ([*words], [*words])
            for words in (
                ("-k", "auth and not key", "tests/test_token.py::test_key[size=3]"),
                ("tests/test_auth.py", "--gpuperf-run=out/run.json", "--junitxml=junit.xml"),
                ("--gpuperf-metrics=core,activity", "--keep-going=yes", "--author=somebody"),
                ("--monkeypatch=all", "https://host/x", "a@b"),
            )
        ),
    ],
)
def test_no_secret_of_a_command_line_is_kept_and_all_else_is(
    words: list[str], kept: list[str]
) -> None:
    assert run_files.without_secrets(words) == kept
    assert run_files.without_secrets(kept) == kept
    assert run_files.command_line(words) == shlex.join(kept)


def test_the_folder_of_runs_is_none_of_git_s(tmp_path: Path) -> None:
    run_files.save(run([measurement()]), run_files.new_file(tmp_path))
    assert (tmp_path / ".gpuperf" / ".gitignore").read_text() == "*\n"
    (tmp_path / ".gpuperf" / ".gitignore").write_text("# ours")
    run_files.save(run([measurement()]), run_files.new_file(tmp_path))
    assert (tmp_path / ".gpuperf" / ".gitignore").read_text() == "# ours"
    run_files.save(run([measurement()]), tmp_path / "elsewhere" / "run.json")
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["run.json"]


@pytest.mark.parametrize("link", [".gpuperf", ".gpuperf/runs"])
def test_a_folder_of_ours_that_leads_out_of_the_project_is_refused(
    link: str, tmp_path: Path
) -> None:
    root, inside, outside = (tmp_path / name for name in ("root", "root/inside", "outside"))
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    place = root / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(inside)
    assert run_files.new_file(root).is_relative_to(root / run_files.FOLDER)
    for target in (outside, outside / "missing"):
        place.unlink()
        place.symlink_to(target)
        problem = f"{root / run_files.FOLDER} leads out of the project, to {target}"
        with pytest.raises(UsageFailure, match=f"{problem}.*writes nothing"):
            run_files.new_file(root)


def test_a_link_in_the_place_of_git_s_file_is_not_followed(tmp_path: Path) -> None:
    new = run_files.new_file(tmp_path / "root")
    new.parent.mkdir(parents=True)
    (new.parent.parent / ".gitignore").symlink_to(tmp_path / "outside")
    run_files.save(run([measurement()]), new)
    assert [place.name for place in tmp_path.iterdir()] == ["root"]


# The project


@pytest.mark.parametrize(
    ("there", "project"),
    [
        ([], "a/b"),
        (["a/pytest.ini"], "a"),
        (["pyproject.toml", "a/tox.ini"], "a"),
        (["pyproject.toml"], "."),
        ([".gpuperf/runs/", "a/pytest.ini"], "."),
        ([".gpuperf/runs/", "a/.gpuperf/runs/"], "a"),
        ([".gpuperf/locks/", "a/setup.cfg"], "a"),
        ([".gpuperf/runs/", "a/.git/", "a/setup.cfg"], "a"),
        ([".gpuperf/runs/", "pytest.ini", "a/.git"], "a/b"),
        ([".gpuperf/runs/", ".git/"], "."),
    ],
)
def test_the_project_of_a_folder(there: list[str], project: str, tmp_path: Path) -> None:
    """The nearest with runs, or else the nearest that is configured."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for name in there:
        place = tmp_path / name
        (place if name.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            place.touch()
    assert run_files.project(inner) == (tmp_path / project).resolve()
