"""A limit that peers share: nobody gets all of it, and what is given back is free again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jellybean_agent import DOMINANCE, SharedLimit

PEERS = ("a", "b", "c")


def test_one_peer_alone_leaves_an_eighth_for_others() -> None:
    limit = SharedLimit(1024)
    first, second = limit.share_of("first"), limit.share_of("second")
    while first.take():
        pass
    assert first.held == 896
    assert first.is_dominant
    while second.take():
        pass
    assert second.held >= 112
    assert limit.held < limit.total, "a third one gets something"
    assert limit.share_of("third").take()


def test_a_small_limit_is_used_up_by_one_peer() -> None:
    for total in range(1, DOMINANCE + 1):
        share = SharedLimit(total).share_of("only")
        assert [share.take() for _ in range(total + 1)] == [True] * total + [False]


def test_a_reserve_is_for_the_privileged_and_bounded_too() -> None:
    limit = SharedLimit(4, reserve=2)
    crowd, admin = limit.share_of("crowd"), limit.share_of("admin")
    while crowd.take():
        pass
    assert not admin.take()
    assert [admin.take(is_privileged=True) for _ in range(3)] == [True, True, False]


def test_a_privileged_crowd_has_its_share_and_leaves_the_rest() -> None:
    """Health checks may use the reserve, so whoever floods them must not get all that others have."""
    limit = SharedLimit(1024, reserve=64)
    crowd, other = limit.share_of("crowd"), limit.share_of("other")
    taken = 0
    while crowd.take(is_privileged=True):
        taken += 1
    assert taken == 896 + 56
    assert other.take()
    assert limit.share_of("probe").take(is_privileged=True)
    crowd.give(taken)
    assert (crowd.held, crowd.reserved) == (0, 0)
    assert limit.reserved == 0


def test_what_does_not_fit_takes_nothing() -> None:
    limit = SharedLimit(100)
    share = limit.share_of("a")
    assert not share.take(101)
    assert (limit.held, share.held) == (0, 0)
    assert not share.take(100), "a large amount leaves something to others too"
    assert share.take(88)
    share.give(88)
    assert limit.largest_share() is None


def test_large_amounts_leave_what_small_ones_leave() -> None:
    by_one, at_once = SharedLimit(800).share_of("a"), SharedLimit(800).share_of("a")
    while by_one.take():
        pass
    while at_once.take(175):
        pass
    assert (by_one.held, at_once.held) == (700, 700)


def test_a_share_is_one_object_while_it_is_used() -> None:
    limit = SharedLimit(10)
    share = limit.share_of("a")
    share.take(3)
    assert limit.share_of("a") is share
    assert limit.largest_share() is share


@given(st.integers(1, 200), st.lists(st.tuples(st.sampled_from(PEERS), st.integers(1, 40)), max_size=60))
def test_takers_never_exceed_the_limit_and_leave_room(total: int, takes: list[tuple[str, int]]) -> None:
    limit = SharedLimit(total)
    shares = {peer: limit.share_of(peer) for peer in PEERS}
    held = dict.fromkeys(PEERS, 0)
    for peer, amount in takes:
        free = total - sum(held.values())
        is_taken = shares[peer].take(amount)
        assert is_taken == (amount <= free and held[peer] + amount - 1 < DOMINANCE * (free - amount + 1))
        held[peer] += amount * is_taken
        assert limit.held == sum(held.values()) <= total
    for peer, amount in held.items():
        shares[peer].give(amount)
    assert limit.held == 0
