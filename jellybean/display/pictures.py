"""What all pictures share: formats, colours and style."""

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
    "svg.hashsalt": "jellybean",  # so that one answer is one file
}


def require_picture(path: Path) -> None:
    """JellyBeanError unless `path` names a picture in a folder that is there; for before long work is done for it."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise JellyBeanError(f"{path}: a picture is one of {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise JellyBeanError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise JellyBeanError(f"{path}: is a folder, not a picture")


def save_figure(figure: Any, path: Path) -> None:
    """Write it without a date: one answer is one file."""
    figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
