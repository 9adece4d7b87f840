"""The division of weights among servers."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from hypothesis import given
from hypothesis import strategies as st

from jellybean.training import TrainingError
from jellybean.training.parameter_server.shards import divide_weights

SIZES = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(0, 100), min_size=4, max_size=20)


@given(SIZES, st.integers(1, 4))
def test_every_weight_has_one_server_and_the_largest_share_is_near_the_least_possible(sizes, servers):
    shares = divide_weights(sizes, servers)
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert all(shares)
    largest = max(sum(sizes[name] for name in share) for share in shares)
    assert largest <= 4 / 3 * max(sum(sizes.values()) / servers, *sizes.values()) + max(sizes.values()) / 3
    assert shares == divide_weights(dict(reversed(sizes.items())), servers)  # the order of names does not matter


def test_a_server_without_weights_is_refused():
    with pytest.raises(TrainingError, match="2 trained weights, too few for 3"):
        divide_weights({"weight": 8, "bias": 4}, 3)
