"""Whole streams on routes, and a worker's capacity in whole streams."""

from __future__ import annotations

import math

import pytest

from jellybean_solver import ServiceTime, StreamAssignment, whole_stream_times
from jellybean_solver.model.stream_assignment import StreamDrawer


def assigned(weights: list[float], streams: int) -> StreamAssignment:
    found = StreamAssignment(weights)
    for stream in range(streams):
        found.route_of(str(stream))
    return found


@pytest.mark.parametrize("weights", [[0.5, 0.5], [10 / 11, 0.5 / 11, 0.5 / 11], [0.7, 0.2, 0.1]])
def test_no_route_gets_more_than_its_quota_rounded_up(weights: list[float]) -> None:
    counts = assigned(weights, 11).counts
    assert sum(counts) == 11
    assert all(count <= math.ceil(11 * weight - 1e-9) for count, weight in zip(counts, weights, strict=True))


def test_a_closed_route_moves_its_streams_only_and_they_are_spread_again_when_it_opens() -> None:
    found = assigned([1 / 3] * 3, 30)
    before = {str(stream): found.route_of(str(stream)) for stream in range(30)}
    found.reweight([0.0, 1 / 3, 1 / 3])
    assert found.counts == [0, 15, 15]
    assert all(found.route_of(stream) == route for stream, route in before.items() if route != 0)
    found.reweight([1 / 3] * 3)
    assert found.counts == [10, 10, 10]


def test_requests_of_a_stream_keep_their_route() -> None:
    drawer = StreamDrawer([0.5, 0.5], 4)
    rounds = [[drawer.draw() for _ in range(4)] for _ in range(3)]
    assert rounds[0] == rounds[1] == rounds[2]
    assert sorted(rounds[0]) == [0, 0, 1, 1]


def test_capacity_is_a_whole_number_of_streams() -> None:
    times = whole_stream_times({1: ServiceTime(0.003, 0.003)}, stream_rate_per_s=100.0, utilisation=0.8)
    assert times[1].load_s == pytest.approx(0.8 / (2 * 100.0))  # 2.67 streams would fit
    assert times[1].mean_s == 0.003
    assert not whole_stream_times({1: ServiceTime(0.009, 0.009)}, 100.0, 0.8)
