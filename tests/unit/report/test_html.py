from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jellybean.display import SHADES
from jellybean.report import Report, Store, build_report, render_html
from jellybean.report.drawing.topology import NARROW, WIDE, Box, Drawing, Shape, draw
from jellybean_solver import Plan
from tests import report_plans as plans

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}&amp;\x1b[2J\u202e"
VOID = {"meta", "br", "link", "img", "input", "hr", "wbr"}
ALL = (plans.vqa, plans.digits, plans.one_worker, plans.large)


def _report(tmp_path: Path, plan: Plan, *, measured: bool = True, predicted: bool = True) -> Report:
    store = Store(tmp_path / ".jellybean" / "report.db", clock=lambda: 1.0)
    info = {"solve_s": 0.12, "selections_tried": 3, "baselines": [[HOSTILE, 9.0, ""], ["edge", None, HOSTILE]]}
    plan_hash = store.add_plan(plans.document(plan), info)
    if predicted:
        store.add_prediction(plan_hash, plans.prediction(plan))
    if measured:
        store.add_measurement(plan_hash, plans.measurement(plan, machine={HOSTILE: HOSTILE}))
    return build_report(store)


class _Page(HTMLParser):
    """Checks that elements nest, and collects what could load or run something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value or "" for name, value in attrs if name == "id"]
        for name, value in attrs:
            if name in {"aria-labelledby", "aria-describedby"}:
                self.references += (value or "").split()
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def _parsed(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize(("measured", "predicted"), [(True, True), (False, True), (False, False)])
def test_the_page_is_whole_and_loads_nothing(tmp_path: Path, make: Any, measured: bool, predicted: bool) -> None:
    html = render_html(_report(tmp_path, make(), measured=measured, predicted=predicted))
    page = _parsed(html)
    assert not page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "video", "audio"}
    assert not page.attributes & {"src", "srcset", "style", "action", "xlink:href", "background"}
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "http:" not in html.replace("http-equiv", "")
    assert "https:" not in html
    assert "url(" not in html
    assert len(page.ids) == len(set(page.ids))
    assert set(page.references) <= set(page.ids)


def test_the_policy_names_the_style_sheet_and_nothing_else(tmp_path: Path) -> None:
    html = render_html(_report(tmp_path, plans.vqa()))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert style
    assert policy
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1].replace("&#39;", "'").replace("&#43;", "+") == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    html = render_html(_report(tmp_path, plans.one_worker(HOSTILE, HOSTILE, HOSTILE)))
    page = _parsed(html)
    assert not page.tags & {"script", "img"}
    assert "onerror" not in page.attributes
    assert "<script" not in html
    assert "\x1b" not in html and "\u202e" not in html
    assert "{{ 7 * 7 }}" in html
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", html)[0]


@pytest.mark.slow
def test_the_page_is_the_same_each_time(tmp_path: Path) -> None:
    report = _report(tmp_path, plans.large())
    assert render_html(report) == render_html(report)


def _drawings() -> list[Any]:
    return [pytest.param(make, shape, id=f"{make.__name__}-{shape.name}") for make in ALL for shape in (WIDE, NARROW)]


@pytest.mark.parametrize(("make", "shape"), _drawings())
def test_drawing_holds_everything_once_and_inside(tmp_path: Path, make: Any, shape: Shape) -> None:
    report = _report(tmp_path, make())
    drawing = draw(report, shape)
    plan = report.plan
    assert len(drawing.boxes) == len(plan.sources) + len(plan.placements)
    assert len(drawing.curves) == len(report.breakdown.flows)
    bars = [bar for band in drawing.bands for panel in band.panels for bar in panel.bars]
    assert len(bars) == len(plan.workers)
    for box in drawing.boxes:
        assert box.x >= 0
        assert box.x + box.width <= drawing.shape.flow_width
        assert box.y + box.height <= drawing.height
        assert any(band.y <= box.y and box.y + box.height <= band.y + band.height for band in drawing.bands)
    for pill in drawing.pills:
        assert pill.x - pill.width / 2 >= 0
        assert pill.x + pill.width / 2 <= drawing.shape.width


@pytest.mark.parametrize(("make", "shape"), _drawings())
def test_boxes_do_not_overlap_and_data_flows_down(tmp_path: Path, make: Any, shape: Shape) -> None:
    drawing = draw(_report(tmp_path, make()), shape)
    for index, one in enumerate(drawing.boxes):
        for other in drawing.boxes[index + 1 :]:
            assert not _overlap(one, other), (one.title, other.title)
    for curve in drawing.curves:
        heights = [y for _, y in curve.points]
        assert heights == sorted(heights)
        assert heights[0] < heights[-1]


@pytest.mark.parametrize(("make", "shape"), _drawings())
def test_labels_do_not_hide_each_other(tmp_path: Path, make: Any, shape: Shape) -> None:
    drawing: Drawing = draw(_report(tmp_path, make()), shape)
    for index, one in enumerate(drawing.pills):
        for other in drawing.pills[index + 1 :]:
            apart = abs(one.x - other.x) >= (one.width + other.width) / 2 or abs(one.y - other.y) >= 18
            assert apart, (one, other)


def _overlap(one: Box, other: Box) -> bool:
    beside = one.x + one.width <= other.x or other.x + other.width <= one.x
    return not beside and one.y < other.y + other.height and other.y < one.y + one.height


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough_to_read(tmp_path: Path, scheme: int) -> None:
    """WCAG 2.1 AA: 4.5 for text, 3 for what only has to be seen."""
    html = render_html(_report(tmp_path, plans.one_worker()))
    block = re.findall(r":root \{(.*?)\}", html, re.DOTALL)[scheme]
    colour = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
    for text in ("ink", "soft"):
        for ground in ("page", "surface", "sunken"):
            assert _contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for level in ("good", "warn", "bad"):
        assert _contrast(colour[level], colour[f"{level}-bg"]) >= 4.5, level
        assert _contrast(colour[level], colour["surface"]) >= 4.5, level
    for mark in ("measured", "predicted", "traffic", *SHADES):
        assert _contrast(colour[mark], colour["surface"]) >= 3, mark
    for shade in SHADES:
        assert _contrast(colour[f"on-{shade}"], colour[shade]) >= 4.5, shade


def test_answers_of_the_last_measurement_are_shown_with_their_pictures(tmp_path: Path) -> None:
    store = Store(tmp_path / ".jellybean" / "report.db", clock=lambda: 1.0)
    plan = plans.vqa()
    plan_hash = store.add_plan(plans.document(plan), {})
    read = {"row": 7, "answer": HOSTILE, "label": "a label", "correctness": 0.0, "picture": "iVBORw0KGgo="}
    store.add_measurement(plan_hash, {**plans.measurement(plan), "answers": [read]})
    report = build_report(store)
    html = render_html(report)
    page = _parsed(html)
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in html
    assert "onerror" not in page.attributes and "<script" not in html
    assert "wrong" in html and "a label" in html and "input 7" in html
    assert report.to_json()["answers"] == [{key: value for key, value in read.items() if key != "picture"}]
