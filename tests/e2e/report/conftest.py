"""One headless browser for all tests of pages and pictures."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import BrowserError, Page, find_browser, running_browser
from tests.support.skips import NotInstalled


@pytest.fixture(scope="package")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page of a running browser; the tests skip where there is none."""
    if find_browser() is None:
        pytest.skip(NotInstalled.BROWSER)
    try:
        with running_browser(tmp_path_factory.mktemp("browser")) as browser:
            yield browser.page()
    except BrowserError as error:
        pytest.skip(f"{NotInstalled.BROWSER}: {error}")
