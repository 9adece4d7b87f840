from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver import AccuracyRow, EndToEnd, Independent, PerOperator, Problem
from tests.strategies import problems

MEASURED = EndToEnd(("image", "speech"), {("small", "base"): 54.0, ("small", "large"): 56.5, ("big", "base"): 55.5})
CHAIN = PerOperator(
    {"image": (), "speech": (), "answer": ("image", "speech")},
    {
        "image": {"small": (AccuracyRow((), 89.0),), "big": (AccuracyRow((), 94.0),)},
        "speech": {"base": (AccuracyRow((), -3.8),), "large": (AccuracyRow((), -1.9),)},
        "answer": {
            "default": (
                AccuracyRow((89.0, -3.8), 54.0),
                AccuracyRow((89.0, -1.9), 56.5),
                AccuracyRow(
                    (94.0, -3.8), 53.0
                ),  # measured worse with the better input: noise that a bound must survive
            )
        },
    },
)


def test_end_to_end_knows_what_was_measured() -> None:
    assert MEASURED.value({"image": "small", "speech": "large", "answer": "default"}) == 56.5
    assert MEASURED.value({"image": "big", "speech": "large", "answer": "default"}) is None


def test_end_to_end_bound_is_the_best_agreeing_measurement() -> None:
    assert MEASURED.upper_bound({}) == 56.5
    assert MEASURED.upper_bound({"answer": "default", "image": "big"}) == 55.5
    assert MEASURED.upper_bound({"image": "big", "speech": "large"}) is None


class CountedReads(dict[tuple[str, ...], float]):
    """A table that counts how often it is read from its first row to its last."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return super().items()


def test_end_to_end_reads_its_table_once_for_each_set_of_operators() -> None:
    """Searches ask for bounds at each node, and a table may have thousands of rows."""
    table = CountedReads({row: float(number) for number, row in enumerate(itertools.product("abc", repeat=3))})
    model = EndToEnd(("x", "y", "z"), table)
    for _ in range(2):
        for names in (("x",), ("z", "y"), ()):
            for variants in itertools.product("abc", repeat=len(names)):
                partial = dict(zip(names, variants, strict=True))
                agreeing = [
                    v for row, v in dict.items(table) if partial.items() <= dict(zip("xyz", row, strict=True)).items()
                ]
                assert model.upper_bound(partial) == max(agreeing)
    assert table.reads == 3


def test_per_operator_takes_the_measured_point() -> None:
    assert CHAIN.value({"image": "big", "speech": "base", "answer": "default"}) == 53.0


def test_per_operator_takes_the_best_point_below_when_nothing_was_measured() -> None:
    assert CHAIN.value({"image": "big", "speech": "large", "answer": "default"}) == 56.5


def test_per_operator_is_unknown_below_all_points() -> None:
    model = PerOperator(
        {"a": (), "b": ("a",)}, {"a": {"x": (AccuracyRow((), 50.0),)}, "b": {"y": (AccuracyRow((60.0,), 90.0),)}}
    )

    assert model.value({"a": "x", "b": "y"}) is None
    assert model.upper_bound({}) is None


def test_per_operator_bound_survives_a_measurement_that_falls() -> None:
    # The exact point at the best inputs gives less than a point below it.
    assert CHAIN.upper_bound({"speech": "base"}) == 54.0


def test_independent_is_a_product() -> None:
    model = Independent({"a": {"x": 90.0, "y": 80.0}, "b": {"z": 50.0}})

    assert model.value({"a": "x", "b": "z", "c": "whatever"}) == pytest.approx(45.0)
    assert model.upper_bound({"a": "y"}) == pytest.approx(40.0)


@pytest.mark.parametrize("model", [EndToEnd((), {}), PerOperator({}, {}), Independent({})])
def test_an_empty_profile_knows_nothing(model: EndToEnd | PerOperator | Independent) -> None:
    assert model.value({"a": "x"}) is None
    assert model.upper_bound({}) is None


@pytest.mark.slow
@settings(max_examples=60)
@given(problems(), st.data())
def test_bounds_are_admissible(problem: Problem, data: st.DataObject) -> None:
    model = problem.accuracy
    names = [operator.name for operator in problem.operators]
    rows = itertools.product(*([variant.name for variant in operator.variants] for operator in problem.operators))
    for row in rows:
        selection = dict(zip(names, row, strict=True))
        value = model.value(selection)
        if value is None:
            continue
        partial = {name: selection[name] for name in names if data.draw(st.booleans(), label=name)}
        bound = model.upper_bound(partial)
        assert bound is not None
        assert value <= bound + 1e-9
