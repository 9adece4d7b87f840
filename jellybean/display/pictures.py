"""Formats, colours and matplotlib style of all pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jellybean.errors import JellyBeanError

PLOT_FORMATS = (".svg", ".png", ".pdf")
INK, SOFT, LINE = "#171b24", "#525b6b", "#d9dde5"
ACCENT, GOOD, BAD, PAID = "#1d5fd1", "#136f45", "#b0232a", "#c2571a"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "svg.fonttype": "none",
    "svg.hashsalt": "jellybean",  # makes the ids in SVG files reproducible
}


def require_picture(path: Path) -> None:
    """JellyBeanError unless a picture can be written to `path`; call it before long work starts."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise JellyBeanError(f"{path}: the file name must end in {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise JellyBeanError(f"{path}: folder {path.parent} not found")
    if path.is_dir():
        raise JellyBeanError(f"{path}: is a folder, not a file")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure without its date, so that files are reproducible."""
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
