"""Lines of code of compiled kernels: inductor's own notes, of a network compiled for the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_gpuperf.measure.trace import compiled_kernels
from pytest_gpuperf.measure.trace.call_sites import FrameFinder
from pytest_gpuperf.model.measurement import CallSite, KernelTable, Launch
from tests import ROOT
from tests.measure.stand_ins import line_of

SILENT = CallSite("", "")
OPERATOR = CallSite("model.py:3", "Net.forward")


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        return (y + 1).relu()


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if nobody had asked inductor for anything, in a process that is left so.

    What it writes in C++ is not compiled, which takes half a minute: its notes are of before that.
    """
    import torch._inductor.config as config
    from torch._inductor.async_compile import AsyncCompile

    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_: lambda *_: None)
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "")  # put back at the end
    monkeypatch.delenv("INDUCTOR_PROVENANCE")
    torch._dynamo.reset()
    untyped: Any = config
    # What another checkout has compiled is noted with that one's lines.
    noted = {"trace.provenance_tracking_level": 0, "fx_graph_cache": False}
    with untyped.patch({**noted, "cpp.vec_isa_ok": False}):
        yield


@pytest.mark.usefixtures("unset")
@pytest.mark.filterwarnings("ignore")  # of the compiler, about itself
def test_kernels_of_forward_and_backward_have_the_line_that_they_were_made_of() -> None:
    compiled_kernels.note()
    torch.compile(Net())(torch.rand(8, requires_grad=True)).sum().backward()
    found = compiled_kernels.sites(FrameFinder(ROOT))
    made = {name: site for name, site in found.items() if name.startswith("cpp_fused")}
    forward, backward = sorted(made.values(), key=lambda site: site.backward)
    assert (forward.line, forward.function) == (line_of(Net, ".relu()"), "Net.forward")
    assert (backward.line, backward.backward) == (line_of(Net, "x.sin()"), True)

    names = (*made, "another")
    launches = tuple(Launch(n, "kernel", None, None, 1.0, ()) for n in (*range(len(names)), 0))
    site_of = (*(1 for _ in names), 0)
    table = KernelTable(names, (), launches, 0.0, sites=(OPERATOR, SILENT), site_of=site_of)
    table = compiled_kernels.with_sites(table, FrameFinder(ROOT))
    at = [table.sites[number] for number in table.site_of]
    assert at == [*made.values(), SILENT, OPERATOR]


@pytest.mark.usefixtures("unset")
def test_what_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    config: Any = sys.modules["torch._inductor.config"]
    for chosen, then in (("0", "0"), (None, "2")):
        if chosen is None:
            monkeypatch.delenv("INDUCTOR_PROVENANCE")
        else:
            monkeypatch.setenv("INDUCTOR_PROVENANCE", chosen)
        compiled_kernels.note()
        assert os.environ["INDUCTOR_PROVENANCE"] == then
        assert config.trace.provenance_tracking_level == int(then)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("{root}/suites/model/layers.py", "suites/model/layers.py:2"),
        ("/another/checkout/suites/model/layers.py", "suites/model/layers.py:2"),
        ("/another/project/layers.py", ""),
        ("/venv/lib/site-packages/model/layers.py", ""),
    ],
)
def test_lines_of_what_another_checkout_compiled_are_those_of_this_one(
    tmp_path: Path, file: str, line: str
) -> None:
    """Its graphs come out of inductor's cache, as those of the other side of `gpuperf ab`."""
    here = tmp_path / "suites" / "model" / "layers.py"
    here.parent.mkdir(parents=True)
    here.write_text("def attend():\n    return 1\n")
    stack = f'  File "{file.format(root=tmp_path)}", line 2, in attend\n    return 1\n'
    found = compiled_kernels.innermost(stack, FrameFinder(tmp_path))
    assert found == ((line, "attend") if line else None)
