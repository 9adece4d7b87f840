"""Takes the screenshots of docs/images anew: `python -m tests.tools.screenshots [PROJECT]`.

Without a project it plans, serves and measures a copy of examples/digits, which takes minutes; a project that is up and
measured is used as it is. Needs a headless browser (tests/tools/debian-packages.sh).
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from jellybean.cli.planning.frontier import parse_rates
from jellybean.documents import load_project
from jellybean.frontier import find_frontier, save_plot
from jellybean.serving import Watcher, render, top_of
from tests.support.browser import Page, running_browser

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTHS = (1280, 390)
COLUMNS = {1280: 100, 390: 46}  # of the terminal
COLOURS = 200  # of a picture; enough for flat areas and for small red signs, and half of the bytes
MAX_BYTES = 150_000
MAX_HEIGHT = {1280: 3600, 390: 6500}  # pixels; the rest of a page is left out
HEAD_HEIGHT = 590  # pixels of the wide report that the README shows: verdict and figures
WINDOW_S, WARM_UP_S = 10.0, 8.0


def main() -> None:
    """Write report, frontier and top at both widths."""
    with tempfile.TemporaryDirectory() as name, _project(Path(name)) as project:
        folder = Path(name)
        terminals = dict(_watch(project))
        _run("report", project)
        curves = find_frontier(load_project(project), rates=parse_rates("0.5x..3x"))
        with running_browser(folder) as browser:
            page = browser.page()
            for width in WIDTHS:
                page.resize(width)
                page.open(project / "report.html")
                report = page.screenshot()
                _save(report, f"report-{width}")
                if width > 1000:
                    _save(report, "report-head", HEAD_HEIGHT)
                picture = folder / "frontier.svg"
                save_plot(curves, picture, narrow=width < 1000)
                _shoot_svg(page, folder, picture.read_text(encoding="utf-8"), f"frontier-{width}")
                _shoot_svg(page, folder, terminals[width], f"top-{width}")


def _run(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "jellybean", *map(str, arguments)], check=True, stdout=sys.stderr)


@contextmanager
def _project(folder: Path) -> Iterator[Path]:
    """The project named on the command line, or a copy of the example that is up and measured."""
    if len(sys.argv) > 1:
        yield Path(sys.argv[1]).resolve()
        return
    project = folder / "digits"
    shutil.copytree(ROOT / "examples" / "digits", project)
    _run("plan", project)
    _run("simulate", project)
    _run("up", project, "--detach")
    try:
        _run("bench", project, "--saturate")
        yield project
    finally:
        _run("down", project)


def _watch(project: Path) -> Iterator[tuple[int, str]]:
    """`top` while `bench` runs, as an SVG per width."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "jellybean", "bench", str(project), "--duration", "25"], stdout=sys.stderr
    )
    try:
        time.sleep(WARM_UP_S)
        watcher = Watcher(project)
        before = watcher.scrape()
        time.sleep(WINDOW_S)
        top = top_of(before, watcher.scrape())
    finally:
        bench.wait()
    for width, columns in COLUMNS.items():
        console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
        console.print(render(top))
        yield width, re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="jellybean top"), flags=re.DOTALL)


def _shoot_svg(page: Page, folder: Path, svg: str, name: str) -> None:
    """A picture scaled to the width of the page."""
    path = folder / f"{name}.html"
    style = "<style>body{margin:0} svg{display:block;width:100%;height:auto}</style>"
    path.write_text(f"<!doctype html><meta charset=utf-8>{style}{svg[svg.index('<svg') :]}", encoding="utf-8")
    page.open(path)
    height = page.evaluate("Math.ceil(document.querySelector('svg').getBoundingClientRect().height)")
    width = page.evaluate("innerWidth")
    page.resize(width, height)
    _save(page.screenshot(), name)
    page.resize(width)


def _frequent_colours(image: Image.Image) -> Image.Image:
    """The most frequent colours as a palette: flat areas keep theirs exactly, which a colour's meaning needs."""
    counts: list[tuple[int, Any]] = sorted(image.getcolors(image.width * image.height) or (), reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in counts for part in colour])
    return palette


def _save(png: bytes, name: str, max_height: int | None = None) -> None:
    """Write a picture with few colours; ValueError if it is still too large for the repository."""
    whole = Image.open(io.BytesIO(png)).convert("RGB")
    shown = whole.crop((0, 0, whole.width, min(whole.height, max_height or MAX_HEIGHT[whole.width])))
    image = shown.quantize(palette=_frequent_colours(shown), dither=Image.Dither.NONE)
    path = IMAGES / f"{name}.png"
    image.save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, at most {MAX_BYTES}")
    print(f"{path.relative_to(ROOT)}: {image.width} x {image.height}, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
