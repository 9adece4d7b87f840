"""Render the report as one HTML page without scripts and external resources, for screens and print.

The content security policy allows only the embedded style sheet, by its hash, and pictures that are in the page itself,
so that text that escapes the HTML escaping cannot load or run anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import resources

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from jellybean.display import formats, palette
from jellybean.ledger.amounts import apportioned_table, decimals_for
from jellybean.ledger.queries.questions import CostLine
from jellybean.report import views
from jellybean.report.comparison import METRIC_BY_KEY, Comparison, soft_latency_text
from jellybean.report.drawing import gauges, topology
from jellybean.report.plans.plan_view import cut_lines, hop_lines, option_lines, stale_lines, uses_text, where
from jellybean.report.plans.proof import proof
from jellybean.report.report import Report
from jellybean.report.served.served import Served
from jellybean.report.served.served_table import served_rows
from jellybean.report.utilisation import TOLERANCE
from jellybean.serving.outcomes import outcome_text
from jellybean_agent import printable, printable_lines

MAX_RUNS = 8  # measurements in the list
_CARDS = ("cost_usd_per_h", "accuracy", "throughput_per_s", "highest_rate_per_s", "latency_p50_s", "latency_p99_s")


def render_html(report: Report, served: Served | None = None, nothing_served: str = "") -> str:
    """Render a self-contained page; the output is deterministic. `served`: from the ledger, if there is one.

    `nothing_served`: what the page says instead, where it was asked for and there is nothing.
    """
    style, policy = _style()
    plan = report.plan
    keys = views.operator_keys(report)
    runs = report.runs[: -MAX_RUNS - 1 : -1]
    return _environment().get_template("report.html.j2").render(
        report=report,
        served=served,
        nothing_served=nothing_served,
        served_rows=[] if served is None else list(served_rows(served)),
        plan=plan,
        style=style,
        policy=policy,
        proof=proof(plan),
        uses=uses_text(plan),
        cuts=(*cut_lines(plan), *hop_lines(plan)),
        where={placement: where(plan, placement) for placement in plan.placements},
        batches=any(placement.batch > 1 for placement in plan.placements),
        metrics=METRIC_BY_KEY,
        cards=_cards(report),
        soft_latency=soft_latency_text(plan.slo, report.comparison("latency_p99_s")),
        targets={slo.metric: slo for slo in report.slos},
        drawings=[topology.draw(report, shape) for shape in (topology.WIDE, topology.NARROW)],
        bar_width=gauges.BAR_WIDTH,
        bar_height=gauges.BAR_HEIGHT,
        axis_width=gauges.AXIS_WIDTH,
        costs=views.cost_charts(report.breakdown, plan.cost.total_usd_per_h),
        ratios=views.ratio_chart(report),
        latencies=views.latency_chart(report),
        accuracy=views.accuracy_chart(report),
        workers=views.worker_charts(report.workers, plan.utilisation, keys),
        simulated=any(worker.simulated is not None for worker in report.workers),
        judged_workers=sum(worker.measured is not None for worker in report.workers),
        deviating=[worker for worker in report.workers if worker.deviates],
        utilisation_tolerance=TOLERANCE,
        stale=stale_lines(plan),
        runs=runs,
        notes=_numbered(run.caveats for run in runs),
        trends=views.trends(report),
        keys=keys,
    )  # fmt: skip


def _cards(report: Report) -> list[Comparison]:
    """The figures in large."""
    known = {one.metric: one for one in report.known_comparisons}
    return [known[key] for key in _CARDS if key in known]


def _read(name: str) -> str | None:
    file = resources.files("jellybean.report") / "templates" / name
    return file.read_text(encoding="utf-8") if file.is_file() else None


@cache
def _style() -> tuple[Markup, str]:
    """The style sheet, and the content security policy with its hash."""
    style = palette.style_sheet() + (_read("style.css") or "")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return Markup(style), policy


@cache
def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        loader=FunctionLoader(_read),
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "money_of": _money_of,
        "usd": formats.usd,
        "number": formats.number,
        "duration": formats.duration,
        "rate": formats.rate,
        "byte_rate": formats.byte_rate,
        "size": formats.size,
        "share": formats.percent,
        "accuracy": formats.accuracy,
        "moment": formats.moment,
        "plain": formats.plain,
        "count": _count,
        "unanswered": partial(outcome_text, answered=False),
        "saved": _saved,
        "advice": _advice,
        "option_lines": option_lines,
        "xy": _xy,
        "breakable": _breakable,
        "capitalised": _capitalised,
        "unbroken": _unbroken,
        "unbroken_words": _unbroken_words,
        "correctness": _correctness,
    }
    return environment


def _printable(value: object) -> object:
    """Text without control characters; those for the writing direction reorder what is beside it."""
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _xy(value: float) -> str:
    """A coordinate as text with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _breakable(name: str) -> Markup:
    """A name that may be wrapped after underscores and hyphens rather than inside a word."""
    return Markup(re.sub(r"([_-])(?=\w)", r"\1<wbr>", str(escape(printable(name)))))


def _numbered(groups: Iterable[Sequence[str]]) -> Mapping[str, int]:
    """Text -> its number, from 1 on in the order of appearance, as the same caveat is true of many measurements."""
    texts = dict.fromkeys(text for group in groups for text in group)
    return {text: number for number, text in enumerate(texts, start=1)}


def _unbroken(text: str) -> str:
    """The text with no line break between a figure and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|points|[mµ]?s|min|USD/h|[kMGT]i?B)(?:\W|$))", "\u00a0", text)


def _unbroken_words(command: str) -> Markup:
    """A command that is wrapped between its words: browsers break `--set` after its hyphens."""
    return Markup(" ").join(
        Markup('<span class="word">{}</span>').format(printable(word)) for word in command.split(" ")
    )


def _money_of(lines: Sequence[CostLine], total_usd: float) -> list[str]:
    """The lines' amounts with the decimals of their sum, rounded so that they add up, as `jellybean cost` has them."""
    decimals = decimals_for(total_usd)
    units = apportioned_table([(line.workers_usd, line.traffic_usd) for line in lines], decimals)
    return [f"{sum(row) / 10**decimals:,.{decimals}f}" for row in units]


def _correctness(share: float) -> tuple[str, str]:
    """The chip of an answer: its style and its words."""
    if share >= 1.0:
        return "good", "correct"
    return ("warning", f"{formats.percent(share)} correct") if share > 0.0 else ("bad", "wrong")


def _capitalised(text: str) -> str:
    """A sentence with a capital at its start, the rest as it is."""
    return text[:1].upper() + text[1:]


def _count(value: float | None) -> str:
    return formats.MISSING if value is None else f"{value:.0f}"


def _saved(fraction: float) -> str:
    """A saving against a baseline as a percentage; negative if the baseline is cheaper."""
    return f"{fraction * 100:.0f} %" if abs(fraction) >= 0.005 else "0 %"


def _advice(line: str) -> tuple[str, str]:
    """Split advice into the command and its purpose; the command is empty for a plain sentence."""
    command, _, purpose = line.rpartition("  ")
    return command, purpose
