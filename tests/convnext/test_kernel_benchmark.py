"""The benchmark of the kernels: what it makes of times, and what it says without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import convnext_kernels as benchmark
from benchmarks.convnext_kernels import Ratio, Results
from pytest_gpuperf.storage import files

ABOUT = {"device": "NVIDIA H200", "identity": "0123456789ab", "torch": "2.11.0"}
FAST = Ratio("tiled 3x3", "naive", (1e4, 2e4, 1e4), (4e4, 9e4, 3e4), 3.0, 1e9)
SLOW = Ratio("warp_shuffle norm", "a copy", (3e4,), (1.5e4,), 0.6, 3e7, "bytes")


def test_the_ratio_is_the_median_over_rounds() -> None:
    assert FAST.ratio == 4.0
    assert FAST.good
    assert not SLOW.good


@pytest.mark.parametrize(("ratios", "code"), [((FAST,), 0), ((FAST, SLOW), 1)])
def test_what_was_saved_is_printed(
    ratios: tuple[Ratio, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(files.to_json(Results(ABOUT, ratios)))
    assert benchmark.main(["--from", str(file)]) == code
    first, heading, *lines = capsys.readouterr().out.splitlines()
    assert first == "NVIDIA H200 (torch 2.11.0)"
    assert heading.split()[0] == "ours"
    for cell in ("10.0 us", "100.0 TFLOP/s", "naive", "40.0 us", "4.00", "at least 3"):
        assert cell in lines[0]
    if code:
        for cell in ("30.0 us", "1000.0 GB/s", "a copy", "15.0 us", "0.50", "at least 0.6: MISSED"):
            assert cell in lines[1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="would measure, for a minute")
def test_without_a_gpu_it_says_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main([]) == 4
    said = capsys.readouterr().err
    assert "need a GPU" in said
    assert "pytest tests/convnext" in said


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kernels.json"
    file.write_text('{"about": {}, "ratios": [{"what": "tiled"}]}')
    assert benchmark.main(["--from", str(file)]) == 4
    assert "kernels.json" in capsys.readouterr().err
