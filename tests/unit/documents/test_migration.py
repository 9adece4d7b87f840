"""Prices of migration in the infrastructure, and the sizes of what is downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from jellybean.documents import MigrationSpec, build_problem, json_schemas, load_project
from jellybean.errors import DocumentError

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_prices_and_hysteresis_in_human_units(folder: Path) -> None:
    assert load_project(folder).infrastructure.migration == MigrationSpec()
    assert (MigrationSpec().start_usd, MigrationSpec().download_usd_per_gib, MigrationSpec().at_least) == (
        0,
        None,
        0.02,
    )
    text = "migration={start: 0.02 USD, download: 0.09 USD/GiB, at_least: 5 %}"
    stated = load_project(folder, [text]).infrastructure.migration
    assert (stated.start_usd, stated.download_usd_per_gib, stated.at_least) == (0.02, 0.09, pytest.approx(0.05))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{start: 0.02}", "0.02 has no unit; write 0.02 USD"),
        ("{start: 1 USD/h}", "'USD/h' is the unit of a price per hour"),
        ("{start: -1 USD}", "must not be negative"),
        ("{at_least: 120 %}", "must be at most 1,"),
        ("{price: 1 USD}", "unknown key 'price'"),
    ],
)
def test_wrong_prices_are_refused(folder: Path, value: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        load_project(folder, [f"migration={value}"])
    assert message in str(caught.value)


def test_the_schema_knows_migration() -> None:
    schema = json_schemas()["Infrastructure"]
    migration = schema["$defs"]["MigrationSpec"]["properties"]
    assert set(migration) == {"start", "download", "at_least"}


def test_models_have_the_sizes_of_their_files() -> None:
    directory = EXAMPLES / "digits"
    problem = build_problem(load_project(directory))
    models = [variant.model for operator in problem.operators for variant in operator.variants]
    assert len(models) > 5
    for model in models:
        assert model is not None
        assert model.size_bytes == (directory / model.path).stat().st_size
