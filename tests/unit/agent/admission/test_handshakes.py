"""Unfinished handshakes: their number, and the one that ends for a new one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from jellybean_agent import Handshakes
from tests.support.examples import examples


def test_the_oldest_of_an_address_with_too_many_ends() -> None:
    handshakes: Handshakes[str] = Handshakes(16)
    assert handshakes.begin("alice", "a") is None
    ended = [handshakes.begin(f"silent {number}", "m") for number in range(40)]
    assert [name for name in ended if name is not None] == [f"silent {number}" for number in range(26)]
    assert handshakes.begin("bob", "b") is None, "something is left for others"
    assert {"alice", "bob"} <= set(handshakes)


def test_among_equal_addresses_the_oldest_ends() -> None:
    handshakes: Handshakes[int] = Handshakes(8)
    ended = [handshakes.begin(number, f"10.0.0.{number}") for number in range(20)]
    assert ended == [None] * 8 + list(range(12))


def test_a_finished_handshake_makes_room() -> None:
    handshakes: Handshakes[int] = Handshakes(2)
    for number in range(100):
        assert handshakes.begin(number, "m") is None
        handshakes.finish(number)
        handshakes.finish(number)
    assert not handshakes


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "begin", "finish"]), st.integers(0, 4)), max_size=80)


@given(STEPS)
@settings(max_examples=examples(200))
def test_an_address_ends_none_of_an_address_that_has_fewer(steps: list[tuple[str, int]]) -> None:
    handshakes: Handshakes[tuple[int, int]] = Handshakes(12)
    unfinished: dict[tuple[int, int], None] = {}
    for at, (step, address) in enumerate(steps):
        if step == "finish":
            mine = next((connection for connection in unfinished if connection[1] == address), None)
            if mine is not None:
                handshakes.finish(mine)
                del unfinished[mine]
            continue
        before = Counter(where for _, where in unfinished)
        victim = handshakes.begin((at, address), str(address))
        if victim is not None:
            assert before[victim[1]] >= before[address]
            del unfinished[victim]
        unfinished[at, address] = None
        assert list(handshakes) == list(unfinished)
        assert len(handshakes) <= 12
