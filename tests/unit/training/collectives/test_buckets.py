"""Buckets: order, sizes, copies in and out."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'jellybean-serving[train]'")

from jellybean.training.collectives.buckets import make_buckets

GRADIENTS = {
    "first.weight": torch.arange(6.0).view(2, 3),
    "first.bias": torch.arange(2.0),
    "second.weight": torch.arange(20.0).view(4, 5),
    "second.bias": torch.arange(4.0).double(),
}


def test_buckets_are_in_the_order_of_the_backward_and_of_one_dtype():
    names = [bucket.names for bucket in make_buckets(GRADIENTS, 40.0)]
    assert names == [("second.bias",), ("second.weight",), ("first.bias", "first.weight")]
    assert [bucket.values.dtype for bucket in make_buckets(GRADIENTS, 1e9)] == [torch.float64, torch.float32]
    assert [bucket.values.numel() for bucket in make_buckets(GRADIENTS, 1e9)] == [4, 28]


def test_a_bucket_is_complete_with_its_last_gradient_and_gives_the_sums_back():
    *_, bucket = make_buckets(GRADIENTS, 40.0)
    bucket.put("first.weight", GRADIENTS["first.weight"])
    assert not bucket.complete
    bucket.put("first.bias", GRADIENTS["first.bias"])
    assert bucket.complete
    bucket.values.mul_(3)
    sums = {name: torch.zeros_like(value) for name, value in GRADIENTS.items()}
    bucket.take(sums)
    assert torch.equal(sums["first.weight"], 3 * GRADIENTS["first.weight"])
    assert torch.equal(sums["first.bias"], 3 * GRADIENTS["first.bias"])
    assert not sums["second.weight"].any()
    assert not bucket.complete


def test_a_gradient_that_is_complete_twice_is_an_error():
    bucket, *_ = make_buckets(GRADIENTS, 40.0)
    bucket.put("second.bias", GRADIENTS["second.bias"])
    with pytest.raises(RuntimeError, match=r"second\.bias was complete before"):
        bucket.put("second.bias", GRADIENTS["second.bias"])
