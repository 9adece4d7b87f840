"""Predicted and measured figures of a plan: store, report, terminal tables and HTML page."""

from jellybean.report.html import render_html
from jellybean.report.plan_view import plan_text
from jellybean.report.report import Report, build_report
from jellybean.report.store import Store, StoreError
from jellybean.report.table import to_table

__all__ = ["Report", "Store", "StoreError", "build_report", "plan_text", "render_html", "to_table"]
