"""Quantities as the API server writes them, by apimachinery's resource.Quantity."""

from __future__ import annotations

import pytest

from jellybean_k8s.manifests.quantities import (
    canonical_quantity,
    cores,
    mebibytes,
    parse_quantity,
    with_canonical_quantities,
)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1024Mi", "1Gi"), ("1048576Mi", "1Ti"), ("1536Mi", "1536Mi"), ("0.125Gi", "128Mi"), ("0.5Ki", "512"),
        ("1000m", "1"), ("0.5", "500m"), ("0.1", "100m"), ("1000", "1k"), ("1024", "1024"), ("1500M", "1500M"),
        ("1e3", "1e3"), ("1.5e9", "1500e6"), ("12E6", "12e6"), ("0", "0"), ("0Mi", "0"), ("0.0000000001", "1n"),
    ],
)  # fmt: skip
def test_a_quantity_is_written_in_the_largest_unit_without_a_fraction(written: str, stored: str) -> None:
    assert canonical_quantity(written) == stored
    assert canonical_quantity(stored) == stored


def test_a_text_that_is_no_quantity_is_refused() -> None:
    for text in ("1 Gi", "1gi", "two", "", "1e3M", "NaN"):
        with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
            parse_quantity(text)


def test_cores_and_memory_are_written_as_the_server_stores_them() -> None:
    assert [cores(cpu) for cpu in (0.25, 1.0, 1000.0, 0.0)] == ["250m", "1", "1k", "1m"]
    assert [mebibytes(size) for size in (1.0, 2.0**30, 2.0**40, 1.5e9)] == ["1Mi", "1Gi", "1Ti", "1431Mi"]


def test_only_quantities_of_a_template_are_rewritten() -> None:
    template = {
        "env": [{"name": "limits", "value": "1024Mi"}],
        "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}, "requests": {"cpu": "wrong"}},
        "emptyDir": {"sizeLimit": "2048Ki"},
    }
    assert with_canonical_quantities(template) == {
        "env": [{"name": "limits", "value": "1024Mi"}],
        "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}, "requests": {"cpu": "wrong"}},
        "emptyDir": {"sizeLimit": "2Mi"},
    }
