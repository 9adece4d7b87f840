"""Predicted and measured figures of a plan: store, report, terminal tables and HTML page.

Names are loaded on first use (PEP 562): a command that only records a plan needs no page.
"""

from __future__ import annotations

from jellybean_protos.lazy_surface import lazy_surface

_NAMES: dict[str, tuple[str, ...]] = {  # by module
    "html": ("render_html",),
    "plans.plan_view": ("plan_text", "reserved_text"),
    "report": (
        "Report",
        "build_report",
    ),
    "store": (
        "Store",
        "StoreError",
    ),
    "table": ("to_table",),
}

__all__, __getattr__ = lazy_surface(__name__, _NAMES)
