from jellybean.report.html import render_html as render_html
from jellybean.report.plans.plan_view import plan_text as plan_text
from jellybean.report.plans.plan_view import reserved_text as reserved_text
from jellybean.report.report import Report as Report
from jellybean.report.report import build_report as build_report
from jellybean.report.store import Store as Store
from jellybean.report.store import StoreError as StoreError
from jellybean.report.table import to_table as to_table
