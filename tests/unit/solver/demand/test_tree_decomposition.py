from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_solver.demand.tree_decomposition import tree_decomposition


def test_bags_of_a_polytree_are_its_edges() -> None:
    bags = tree_decomposition("abcd", [("a", "c"), ("b", "c"), ("c", "d")])

    assert {frozenset(bag.operators) for bag in bags} == {frozenset("ac"), frozenset("bc"), frozenset("cd")}


def test_a_lone_operator_is_a_bag() -> None:
    bags = tree_decomposition("ab", [])

    assert [(bag.operators, bag.parent) for bag in bags] == [(("a",), None), (("b",), None)]


def test_a_diamond_takes_bags_of_three() -> None:
    bags = tree_decomposition("abcd", [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])

    assert sorted(len(bag.operators) for bag in bags) == [3, 3]


@settings(max_examples=100)
@given(st.integers(1, 8), st.data())
def test_edges_are_covered_and_operators_connected(count: int, data: st.DataObject) -> None:
    names = [f"o{i}" for i in range(count)]
    pairs = [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []

    bags = tree_decomposition(names, edges)

    for one, other in edges:
        assert any({one, other} <= set(bag.operators) for bag in bags)
    for index, bag in enumerate(bags):
        assert bag.parent is None or bag.parent < index
        above = set(bags[bag.parent].operators) if bag.parent is not None else set()
        assert set(bag.separator) == set(bag.operators) & above
    for name in names:
        # Connected: exactly one of an operator's bags does not share it with the parent.
        tops = [bag for bag in bags if name in bag.operators and name not in bag.separator]
        assert len(tops) == 1
