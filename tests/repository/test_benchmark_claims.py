"""Claims beside the run that was recorded on an H200."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import recorded
from benchmarks.claims import table
from suites.meddpm.claims import CLAIMS

RUN = "docs/runs/h200-meddpm.json"


def row(claim: str, **changes: float) -> list[str]:
    """The cells of a claim's row, the claim changed."""
    (one,) = (entry for entry in CLAIMS if entry.name == claim)
    _, _, line = table([replace(one, **changes)], recorded.run(RUN)).splitlines()  # type: ignore[arg-type]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_the_ratio_and_its_interval() -> None:
    ratio, metric, claimed, here = row("tf32_takes_fewer_cycles")
    assert (ratio, metric, claimed) == ("`tf32` / `baseline`", "`cycles`", "below 0.35")
    assert here.startswith("0.177 (0.1")


def test_a_broken_claim_says_so() -> None:
    assert row("tf32_takes_fewer_cycles", below=0.1)[3].endswith((": broken", ": inconclusive"))


def test_what_the_run_lacks_is_not_measured() -> None:
    assert row("tf32_uses_the_tensor_cores")[3] == "not measured"
    other = replace(CLAIMS[1], numerator="another")
    assert "| not measured |" in table([other], recorded.run(RUN))


def test_claims_of_other_gpus_have_no_row() -> None:
    assert CLAIMS[0].architectures == ("sm70", "sm75")
    assert len(table(CLAIMS, recorded.run(RUN)).splitlines()) == 2 + len(CLAIMS) - 1
