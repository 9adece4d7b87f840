"""The report's page in a real browser: what is on it, that it asks for nothing, and that it fits the screen."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jellybean.report import Store, build_report, render_html
from jellybean_solver.model.plan import Plan
from tests import report_plans as plans

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell")
QUIET = (
    "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--disable-extensions",
    "--disable-features=OptimizationHints,MediaRouter,Translate,DialMediaRouteProvider", "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself shall not reach out either
)  # fmt: skip
HOSTILE = "<img src=http://example.invalid/x onerror=alert(1)>"


def _find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = _find_browser()
    if found is None:
        pytest.skip(f"no headless browser on PATH (looked for {', '.join(BROWSERS)})")
    probe = _run(found, tmp_path_factory.mktemp("probe"), "about:blank")
    if probe.returncode != 0 or "<html" not in probe.stdout:
        pytest.skip(f"{found} does not run here: {probe.stderr.strip().splitlines()[-1:]}")
    return found


def _run(browser: str, folder: Path, address: str, *flags: str) -> subprocess.CompletedProcess[str]:
    as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    profile = f"--user-data-dir={folder / 'profile'}"
    return subprocess.run(
        [browser, *QUIET, *as_root, profile, *flags, "--dump-dom", address],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def _open(browser: str, folder: Path, html: str, *flags: str) -> tuple[str, list[str], list[str]]:
    """The rendered document, what was written to the console, and the addresses asked for that are no files."""
    page, log = folder / "page.html", folder / "net.json"
    page.write_text(html, encoding="utf-8")
    done = _run(browser, folder, page.as_uri(), f"--log-net-log={log}", *flags)
    assert done.returncode == 0, done.stderr
    assert "<html" in done.stdout, done.stderr
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console, _asked(json.loads(log.read_text(encoding="utf-8")))


def _asked(net_log: dict[str, Any]) -> list[str]:
    """Addresses that the page asked for; a browser's own requests have no origin."""
    parameters = [event.get("params", {}) for event in net_log["events"]]
    asked = {str(p["url"]) for p in parameters if "url" in p and p.get("initiator", "not an origin") != "not an origin"}
    return sorted(url for url in asked if not url.startswith(("file:", "data:")))


def _page(folder: Path, plan: Plan, *, measured: bool = True) -> str:
    store = Store.of(folder / "project")
    baselines: list[list[Any]] = [["all in the cloud", 12.31, ""], [HOSTILE, None, "infeasible"]]
    plan_hash = store.add_plan(plans.document(plan), {"solve_s": 0.12, "baselines": baselines})
    if measured:
        store.add_prediction(plan_hash, plans.prediction(plan))
        for p50 in (0.062, 0.063, 0.066):
            store.add_measurement(plan_hash, plans.measurement(plan, latency_p50_s=p50))
    return render_html(build_report(store))


def _visible(document: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", document, flags=re.DOTALL)).split())


def test_the_page_shows_the_report_and_asks_for_nothing(browser: str, tmp_path: Path) -> None:
    document, console, asked = _open(browser, tmp_path, _page(tmp_path, plans.digits()))
    text = _visible(document)
    for expected in (
        "digits", "Meets its targets, as predicted", "0.72 USD/h", "93.10", "92.70", "61.0 ms", "66.0 ms",
        "Topology and placement", "edge-box-1", "mlp-int8", "Cost by operator", "Certificate", "optimal", "Drift",
    ):  # fmt: skip
        assert expected in text
    assert document.count("<svg") > 10
    assert console == []
    assert asked == []


def test_the_check_would_notice(browser: str, tmp_path: Path) -> None:
    """A style sheet the policy does not name is reported; a script in a page without a policy runs and asks."""
    html = _page(tmp_path, plans.digits())
    _, console, _ = _open(browser, tmp_path, html.replace("<style>", "<style>/* changed */"))
    assert any("Content Security Policy" in line for line in console)
    bare = re.sub(r"<meta http-equiv=.*?>", "", html)
    _, _, asked = _open(browser, tmp_path, bare.replace("<main>", '<main><img src="http://127.0.0.1:9/x.png">'))
    assert "http://127.0.0.1:9/x.png" in asked


def test_hostile_names_do_nothing(browser: str, tmp_path: Path) -> None:
    document, console, asked = _open(browser, tmp_path, _page(tmp_path, plans.one_worker(HOSTILE, HOSTILE, HOSTILE)))
    assert "&lt;img" in document
    assert "<img" not in document
    assert (console, asked) == ([], [])


_MEASURE = """<script>addEventListener('load', () => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const cut = [];
  for (const group of document.querySelectorAll('.topology g')) {
    const frame = group.querySelector('rect');
    if (!frame || !frame.getBoundingClientRect().width) continue;
    const right = frame.getBoundingClientRect().right;
    for (const text of group.querySelectorAll('text')) {
      const box = text.getBoundingClientRect();
      if (box.right > right + 1) cut.push(text.textContent);
    }
  }
  document.title = JSON.stringify({wide, cut, drawn: [...document.querySelectorAll('.topology')]
    .filter(e => e.getBoundingClientRect().width > 0).length});
});</script></body>"""


@pytest.mark.parametrize("width", [390, 820, 1280])
@pytest.mark.parametrize("make", [plans.vqa, plans.digits, plans.one_worker, plans.large])
def test_the_page_fits_the_screen(browser: str, tmp_path: Path, make: Any, width: int) -> None:
    """Nothing scrolls sideways but tables in their own frames; texts stay in their boxes; one drawing is shown."""
    html = _page(tmp_path, make(), measured=make is not plans.one_worker)
    html = re.sub(r"<meta http-equiv=.*?>", "", html).replace("</body>", _MEASURE)
    flags = (f"--window-size={width},2000", "--virtual-time-budget=2000")
    document, _, _ = _open(browser, tmp_path, html, *flags)
    title = re.search(r"<title>(\{.*?)</title>", document)
    assert title
    assert json.loads(title[1].replace("&amp;", "&")) == {"wide": 0, "cut": [], "drawn": 1}
