"""The HTML report of a run, and the page of a history. Both load nothing from the network.

Only this module, page.html.j2 and history.html.j2 produce HTML; everything else is data. Jinja
escapes all outside text: names of tests and kernels, messages, commands. The script's data is JSON
that an HTML parser cannot take for markup. A Content-Security-Policy lets the page run only its own
script, whatever a name contains.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.utils import htmlsafe_json_dumps

from pytest_gpuperf import __version__
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.architectures import CPU
from pytest_gpuperf.errors import printable_lines
from pytest_gpuperf.history.nights import History, date
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report import view
from pytest_gpuperf.report.html import chart, night_drawings
from pytest_gpuperf.report.html.figure import cell_text
from pytest_gpuperf.report.html.figures import all_figures
from pytest_gpuperf.report.html.overview import overview
from pytest_gpuperf.report.html.subject import FigureSubject, subjects
from pytest_gpuperf.report.proof import Proof
from pytest_gpuperf.report.text import kernel_lines, proof_lines
from pytest_gpuperf.report.text.next_command import CommandContext, typed
from pytest_gpuperf.report.text.night_lines import night_view, series_key

_FOLDER = Path(__file__).parent
_MOST_ROWS = 400
"""The most rows of a figure's table that the page shows."""
_MOST_CAUSES = 5
"""Causes above the table."""
_MOST_EVENTS = 120
"""Events on the page of a history."""
_MOST_VALUES = 6
"""Values of one fact that are shown."""


def page(
    run: Run,
    file: str = "",
    context: CommandContext | None = None,
    past: History | None = None,
    proof: Proof | None = None,
) -> str:
    """The report of `run` as HTML. `file` is the saved run, for the commands.

    `context` says how the run was started; None derives it from the run. `past` is the history of
    its tests, and `proof` the result of `gpuperf prove`, if there is one.
    """
    nights = night_view(past, run) if past else None
    measured = subjects(run)
    figures = all_figures(measured)
    drawings = ((one.key, chart.drawing(one)) for one in figures)
    charts = {key: drawing for key, drawing in drawings if drawing is not None}
    return _rendered(
        "page.html.j2",
        ("vendor/echarts.common.min.js", "page.js"),
        run=run,
        incomplete=view.incomplete(run),
        data=htmlsafe_json_dumps([*charts.values()], allow_nan=False),
        overview=overview(run, measured, file, context, past),
        nights=nights,
        proof=proof,
        gates=proof_lines,
        histories={one.main.key: one.main for one in nights.rows} if nights else {},
        series_key=series_key,
        drawings=night_drawings,
        causes=kernel_lines,
        command=typed(run.command),
        figures=figures,
        charted=charts.keys(),
        text=cell_text,
        most_rows=_MOST_ROWS,
        most_causes=_MOST_CAUSES,
        facts=_facts(measured),
    )


def history_page(past: History) -> str:
    """The history as HTML. It has no script: series are drawn as SVG."""
    return _rendered(
        "history.html.j2",
        nights=night_view(past),
        drawings=night_drawings,
        span=(date(past.days[0]), date(past.days[-1])) if past.days else ("", ""),
        most_events=_MOST_EVENTS,
    )


def _facts(subjects: Sequence[FigureSubject]) -> dict[str, str]:
    """The conditions of all measurements: each value once."""
    facts: list[tuple[str, str]] = []
    for measurement in (one for subject in subjects for one in subject.result.measurements):
        device, prints = measurement.fingerprint.device, measurement.fingerprint
        facts += [("device", str(device)), ("GPU", device.identity if device.arch != CPU else "")]
        facts.append(("revision", prints.revision))
        for known in (measurement.workload, prints.software, prints.settings):
            facts += [
                (name, f"{value:g}" if isinstance(value, float) else str(value))
                for name, value in known.items()
            ]
    # How long the measurement took is no property of the step.
    of_step = [(name, value) for name, value in facts if value and not name.endswith("_s")]
    found = view.gathered(of_step)
    return {name: units.few(values, _MOST_VALUES, "others") for name, values in found.items()}


def _rendered(name: str, files: Sequence[str] = (), **content: object) -> str:
    """One of this package's templates with this content, style and scripts."""
    css, *scripts = ((_FOLDER / file).read_text(encoding="utf-8") for file in ("page.css", *files))
    text = _template(name).render(
        version=__version__, policy=_policy(css, scripts), style=css, scripts=scripts, **content
    )
    # A name may hold half a surrogate pair, which is no text that a file can have.
    return text.encode("utf-8", "replace").decode()


@lru_cache(maxsize=2)
def _template(name: str) -> Template:
    """One of this package's templates, with autoescape for outside text."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _shown_text(value: object) -> object:
    """A value for the template. Our own HTML is a Markup, not a `str`, and stays as it is."""
    return printable_lines(value) if type(value) is str else value


def _policy(css: str, scripts: Sequence[str]) -> str:
    """The policy: this page's own style and scripts by hash, embedded images, nothing more."""
    run = " ".join(_hash(script) for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {run}; style-src {_hash(css)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
