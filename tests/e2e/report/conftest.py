"""One headless browser for all tests of pages and pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import BrowserError, Page, find_browser, running_browser


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a running browser; the tests skip where there is none."""
    if find_browser() is None:
        pytest.skip("no headless browser here")
    try:
        with running_browser(tmp_path_factory.mktemp("browser")) as browser:
            yield browser.page()
    except BrowserError as error:
        pytest.skip(f"the browser does not run here: {error}")
