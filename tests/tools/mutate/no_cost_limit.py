"""A pytest plug-in: processor seconds fail no test, as a tracer adds to them and a fault may too."""

from __future__ import annotations

import pytest

NO_COST_LIMIT = __name__  # of the plug-in


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Set the option of `tests/tools/cost.py`, where that plug-in is used."""
    if hasattr(config.option, "no_cost_limit"):
        config.option.no_cost_limit = True
