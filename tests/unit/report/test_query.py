"""Tables for notebooks: every question with and without pandas, and the example of docs/python.md."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jellybean import query
from jellybean.errors import InputError
from jellybean.ledger import Ledger, Span, ledger_url
from jellybean.report import Store
from tests import report_plans as plans
from tests.support.made_up_run import BEGIN_S
from tests.support.two_plans_run import CHANGED_S, END, PIECE_S, keep_labelled, write_two_plans

DOCS = (Path(__file__).parents[3] / "docs/python.md").read_text(encoding="utf-8")
QUESTIONS: dict[str, Callable[..., Any]] = {
    "cost": query.cost,
    "served": query.served,
    "timeline": query.timeline,
    "intervals": query.intervals,
    "accuracy": query.accuracy,
    "accuracy_over_time": query.accuracy_over_time,
    "drift": query.drift,
    "history": query.history,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """A project with a ledger of two plans and labels, and the hashes of its plans."""
    folder = tmp_path_factory.mktemp("notebook") / "my-digits"
    store = Store.of(folder)
    documents = [plans.document(plans.digits()), plans.document(replace(plans.digits(), accuracy=92.0))]
    hashes = [store.add_plan(document) and str(document["hash"]) for document in documents]
    ledger = Ledger(ledger_url(folder), "gateway")
    write_two_plans(ledger, *hashes)
    keep_labelled(ledger, "digits", hashes[0], BEGIN_S, [True, True, False, True], 10.0)
    keep_labelled(ledger, "digits", hashes[1], CHANGED_S, [True, False], 10.0)
    ledger.close()
    yield folder, hashes


def documented(name: str) -> list[str]:
    """The columns that the documentation names, without those of `served` that it calls by a word."""
    (line,) = [line for line in DOCS.splitlines() if line.startswith(f"| `jellybean.query.{name}(")]
    return re.findall(r"`(\w+)`", line.split("|")[3])


@pytest.mark.parametrize("name", QUESTIONS)
def test_tables_have_the_documented_columns_with_pandas_and_without(
    served: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder, _ = served
    frame = QUESTIONS[name](folder)
    assert set(documented(name)) <= set(frame.columns)
    if name != "served":
        assert documented(name) == list(frame.columns)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    rows = QUESTIONS[name](folder)
    assert isinstance(rows, list)
    assert len(rows) == len(frame)
    assert all(list(row) == list(frame.columns) for row in rows)


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != "drift"])
def test_a_project_that_served_nothing_has_empty_tables_with_columns(tmp_path: Path, name: str) -> None:
    Store.of(tmp_path).add_plan(plans.document(plans.digits()))
    frame = QUESTIONS[name](tmp_path)
    assert set(documented(name)) <= set(frame.columns)
    assert len(frame) == (name == "history")  # the plan
    with pytest.raises(InputError, match="nothing was served yet"):
        query.drift(tmp_path)


def test_spans_and_plans_restrict_all_of_them(served: tuple[Path, list[str]]) -> None:
    folder, (first, second) = served
    whole, own = query.cost(folder, by="plan").set_index("name"), query.cost(folder, span=Span(plan=second))
    assert own["usd"].sum() == pytest.approx(whole["usd"][second])
    assert set(query.intervals(folder, span=Span(plan=first))["plan"]) == {first}
    assert len(query.intervals(folder, span=Span(CHANGED_S))) == END - (CHANGED_S - BEGIN_S) / PIECE_S
    every = query.intervals(folder)
    assert every["usd"].sum() == pytest.approx(whole["usd"].sum())
    assert every["answered"].sum() == whole["done"].sum()
    assert list(query.accuracy(folder, span=Span(plan=first))["accuracy"]) == [75.0]
    assert list(query.accuracy_over_time(folder, piece_s=600)["labels"]) == [4, 2]
    points = query.timeline(folder, 600, Span(until_s=CHANGED_S))
    assert points["paid_s"].tolist() == [600.0, 600.0]


def test_the_example_of_the_documentation_runs(served: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, (_, second) = served
    monkeypatch.setattr("time.time", lambda: BEGIN_S + END * PIECE_S)
    block = re.search(r"With pandas:\n\n((?:    .*\n|\n)+)", DOCS)
    assert block is not None
    names: dict[str, Any] = {}
    with contextlib.chdir(folder.parent):
        exec(textwrap.dedent(block[1]), names)
    assert names["dearest"]["name"].tolist() == ["detect", "read"]
    assert names["hours"]["usd_per_thousand"].between(0.1, 100).all()
    assert str(names["hours"]["begin"].dt.tz) == "UTC"
    assert 0 < names["worst"] < 75
    assert names["last"] == second
    assert names["own"]["usd"].sum() > 0
    assert names["paid_s"].sum() == pytest.approx(END * PIECE_S)
    assert isinstance(names["drifted"], list)
