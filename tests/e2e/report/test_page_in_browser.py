"""The report's page in a real browser: what is on it, that it asks for nothing, and that it fits the screen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jellybean.ledger import Ledger, OpenedLedger, Span, ledger_url
from jellybean.report import ServedQuestion, Store, build_report, planned_figures, render_html
from jellybean.report.served.served import served
from jellybean_solver import Plan
from tests import report_plans as plans
from tests.support.browser import Page
from tests.support.made_up_run import BEGIN_S
from tests.support.two_plans_run import CHANGED_S, keep_labelled, write_two_plans

HOSTILE = "<img src=http://example.invalid/x onerror=alert(1)>"


def _open(page: Page, folder: Path, html: str) -> str:
    """The text of the rendered document; `page` has what was written to the console and asked for."""
    path = folder / "page.html"
    path.write_text(html, encoding="utf-8")
    page.open(path)
    return str(page.evaluate("document.documentElement.outerHTML"))


def _asked(page: Page) -> list[str]:
    return [address for address in page.asked if not address.startswith(("file:", "data:"))]


CAVEAT = (
    "this machine was too slow or too busy to emulate the fleet: 20% of the time that edge-box-1 was busy, its " * 2
)


def _limited() -> Plan:
    """A plan with stale profiles, whose measurements have caveats and causes of a deviation."""
    stale = "shape/mlp-int8: the model has another sha256 (profiled 3822aa01, now 77bbf02c)"
    return replace(plans.digits(), stale_profiles=(stale, "worker type edge-box: speed was 0.5, is 0.25 now"))


def _page(folder: Path, plan: Plan, *, measured: bool = True, p50: float = 0.066) -> str:
    store = Store.of(folder / "project")
    baselines: list[list[Any]] = [["all in the cloud", 12.31, ""], [HOSTILE, None, "infeasible"]]
    plan_hash = store.add_plan(plans.document(plan), {"solve_s": 0.12, "baselines": baselines})
    if measured:
        store.add_prediction(plan_hash, plans.prediction(plan))
        limits = {"caveats": [CAVEAT], "machine_cpu": 0.97, "utilisation": {"cloud-1": 0.9}}
        changes = limits if plan.stale_profiles else {}
        for p50_s in (0.062, 0.063, p50):
            store.add_measurement(plan_hash, plans.measurement(plan, latency_p50_s=p50_s, **changes))
    return render_html(build_report(store))


def _visible(document: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", document, flags=re.DOTALL)).split())


def test_the_page_shows_the_report_and_asks_for_nothing(page: Page, tmp_path: Path) -> None:
    page.resize(1280)
    document = _open(page, tmp_path, _page(tmp_path, plans.digits()))
    text = _visible(document)
    for expected in (
        "digits", "Meets its targets, as predicted", "0.72 USD/h", "93.10", "92.70", "61.0 ms", "66.0 ms",
        "Topology and placement", "edge-box-1", "mlp-int8", "Cost by operator", "traffic", "Certificate", "optimal",
        "Drift",
    ):  # fmt: skip
        assert expected in text
    assert document.count("<svg") > 10
    assert (page.console, _asked(page)) == ([], [])


def test_the_check_would_notice(page: Page, tmp_path: Path) -> None:
    """A style sheet the policy does not name is reported; a script in a page without a policy runs and asks."""
    html = _page(tmp_path, plans.digits())
    _open(page, tmp_path, html.replace("<style>", "<style>/* changed */"))
    assert any("Content Security Policy" in line for line in page.console)
    bare = re.sub(r"<meta http-equiv=.*?>", "", html)
    _open(page, tmp_path, bare.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">'))
    assert _asked(page) == ["http://127.0.0.1:9/x.png"]


def test_hostile_names_do_nothing(page: Page, tmp_path: Path) -> None:
    document = _open(page, tmp_path, _page(tmp_path, plans.one_worker(HOSTILE, HOSTILE, HOSTILE)))
    assert "&lt;img" in document
    assert "<img" not in document
    assert (page.console, _asked(page)) == ([], [])


# wide: pixels that the page scrolls sideways. cut: texts of boxes that leave their box. hints: tables whose hint and
# whose overflow disagree. narrow: tables without a frame of their own that are wider than it. lost: texts of the page
# beyond the screen. ragged: charts whose tracks differ in place or width. crossed: texts of the drawing with a line
# under them. hidden: labels of a line that lie on another one too. spilled: cells of tables whose text is wider.
_LAYOUT = """(() => {
  const box = element => element.getBoundingClientRect();
  const shown = element => box(element).width > 0 && box(element).height > 0;
  const all = (query, root = document) => [...root.querySelectorAll(query)].filter(shown);
  const screen = document.documentElement.clientWidth;
  const cut = all('.topology g').flatMap(group => {
    const frame = group.querySelector('rect');
    return all('text', group).filter(text => !frame || box(text).right > box(frame).right + 7).map(t => t.textContent);
  });
  const hints = [...document.querySelectorAll('.scroll')].filter(frame =>
    (frame.scrollWidth > frame.clientWidth + 1) !== shown(frame.previousElementSibling)).map(f => f.ariaLabel);
  const narrow = all('.fits').filter(frame => frame.scrollWidth > frame.clientWidth + 1).map(f => f.textContent);
  const lost = all('h1,h2,h3,p,li,dd,dt').filter(e => box(e).right > screen + 1).map(e => e.textContent.trim());
  const ragged = all('.rows').filter(list => {
    const tracks = all('rect.track', list).map(box);
    return new Set(tracks.map(t => Math.round(t.left) + '-' + Math.round(t.right))).size > 1;
  }).length;
  const drawing = all('.topology')[0];
  const lines = [...drawing.querySelectorAll('path.line')].map(path => {
    const matrix = path.getScreenCTM(), length = path.getTotalLength();
    const steps = Array.from({length: Math.ceil(length / 2) + 1}, (_, i) => 2 * i);
    return steps.map(at => path.getPointAtLength(at).matrixTransform(matrix));
  });
  const under = area => lines.filter(points => points.some(p =>
    p.x > area.left + 1 && p.x < area.right - 1 && p.y > area.top + 1 && p.y < area.bottom - 1)).length;
  const pills = new Set(all('rect.pill', drawing).map(rect => rect.nextElementSibling));
  const crossed = all('text', drawing).filter(text => !pills.has(text) && under(box(text)) > 0).map(t => t.textContent);
  const hidden = [...pills].filter(text => under(box(text.previousElementSibling)) > 1).map(t => t.textContent);
  const spilled = all('th,td').filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent);
  return {wide: document.documentElement.scrollWidth - screen, cut, hints, narrow, lost, ragged, crossed, hidden,
    spilled, drawn: all('.topology').length, screen};
})()"""
WELL = {
    "wide": 0, "cut": [], "hints": [], "narrow": [], "lost": [], "ragged": 0, "crossed": [], "hidden": [], "drawn": 1,
    "spilled": [],
}  # fmt: skip


@pytest.mark.parametrize("make", [plans.vqa, plans.digits, plans.one_worker, plans.large, plans.idle_hub, _limited])
def test_the_page_fits_the_screen(page: Page, tmp_path: Path, make: Any) -> None:
    """Nothing scrolls sideways but wide tables, and those say so; no text leaves its box or lies on a line."""
    html = _page(tmp_path, make(), measured=make is not plans.one_worker)
    for width in (390, 820, 1280):
        page.resize(width)
        _open(page, tmp_path, html)
        assert page.evaluate(_LAYOUT) == WELL | {"screen": width}, width


def _served_page(folder: Path) -> str:
    """A page of a plan that was served after another one, by clients with long names, with labels of both."""
    store = Store.of(folder / "project")
    first, second = (plans.document(plan) for plan in (plans.digits(), replace(plans.digits(), accuracy=92.0)))
    hashes = [store.add_plan(document) and str(document["hash"]) for document in (first, second)]
    ledger = Ledger(ledger_url(folder / "project"), "gateway")
    write_two_plans(ledger, *hashes, clients=("ann@a-very-long-name-of-a-store.example.com", HOSTILE))
    for plan_hash, begin_s in zip(hashes, (BEGIN_S, CHANGED_S), strict=True):
        keep_labelled(ledger, "digits", plan_hash, begin_s, [True, False, True, True] * 20, 14.0)
    question = ServedQuestion(Span(), ("digits",), planned_figures(store, hashes))
    found = served(OpenedLedger(ledger), question)
    ledger.close()
    return render_html(build_report(store), found)


@pytest.mark.parametrize("letters", range(36, 60, 2))
def test_a_command_with_a_long_path_fits_the_screen(page: Page, tmp_path: Path, letters: int) -> None:
    """Whatever letter of a path the line of a narrow screen ends at."""
    html = _page(tmp_path, plans.digits(), measured=False).replace(str(tmp_path / "project"), "p" * letters)
    assert "p" * letters in html
    page.resize(390)
    _open(page, tmp_path, html)
    assert page.evaluate(_LAYOUT) == WELL | {"screen": 390}


def test_what_was_served_fits_the_screen(page: Page, tmp_path: Path) -> None:
    """Cost, accuracy with its interval, answers, latency and failures over one axis of time."""
    html = _served_page(tmp_path)
    for width in (390, 820, 1280):
        page.resize(width)
        document = _open(page, tmp_path, html)
        assert page.evaluate(_LAYOUT) == WELL | {"screen": width}, width
        curves = "[...document.querySelectorAll('svg.tall')].map(s => s.getBoundingClientRect())"
        assert len(page.evaluate(f"{curves}.map(b => b.left)")) == 5
        assert page.evaluate(f"new Set({curves}.map(b => b.left + ' ' + b.width)).size") == 1
        marks = "[...document.querySelectorAll('svg.tall line.change')].map(l => l.getBoundingClientRect().left)"
        assert page.evaluate(f"new Set({marks}).size") == 1
        assert page.evaluate(f"{marks}.length") == 5
    assert "Accuracy by labels" in _visible(document)
    assert (page.console, _asked(page)) == ([], [])


def test_the_layout_check_would_notice(page: Page, tmp_path: Path) -> None:
    page.resize(390)
    html = re.sub(r"<meta http-equiv=.*?>", "", _page(tmp_path, plans.digits()))
    _open(page, tmp_path, html.replace(".swipe { display: block; }", ""))
    assert page.evaluate(_LAYOUT)["hints"]
    page.resize(1280)
    _open(page, tmp_path, html.replace("grid-template-columns: subgrid", "grid-template-columns: 3em 1fr auto"))
    assert page.evaluate(_LAYOUT)["ragged"] > 0


_COLOURS = """(() => {
  const probe = document.createElement('div');
  document.body.append(probe);
  const token = name => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const fills = query => [...new Set([...document.querySelectorAll(query)].map(e => getComputedStyle(e).fill))];
  const marks = {worker: '.rows rect.worker', traffic: '.rows rect.traffic', measured: '.rows rect.measured',
    predicted: '.rows rect.predicted', good: '.dot.good', warn: '.dot.warn'};
  const found = Object.entries(marks).map(([name, query]) =>
    [name, fills(query), [token(name === 'worker' ? 'worker-2' : name)]]);
  return {found, ink: token('ink'), surface: token('surface')};
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_have_the_colour_of_their_meaning(page: Page, tmp_path: Path, scheme: str) -> None:
    html = re.sub(r"<meta http-equiv=.*?>", "", _page(tmp_path, plans.idle_hub(), p50=0.2))
    try:
        page.emulate(scheme=scheme)
        _open(page, tmp_path, html)
        colours = page.evaluate(_COLOURS)
        assert all(fills == token for _, fills, token in colours["found"]), colours
        assert len({fills[0] for _, fills, _ in colours["found"]}) == len(colours["found"])
        page.emulate(scheme=scheme, media="print")
        printed = page.evaluate(_COLOURS)
        assert (printed["ink"], printed["surface"]) == ("rgb(23, 27, 36)", "rgb(255, 255, 255)"), "dark ink on paper"
    finally:
        page.emulate()
