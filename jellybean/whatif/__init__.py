"""Rates by time: replay of a trace over the current plan (`plan --check TRACE`), and a plan for each of its periods."""

from jellybean.whatif.calendar import Calendar, TimedPlan, plan_by_time
from jellybean.whatif.calendar_plot import save_calendar_plans, save_calendar_plot
from jellybean.whatif.calendar_view import calendar_json, calendar_text
from jellybean.whatif.check import Hint, TraceCheck, check_trace
from jellybean.whatif.plot import save_plot
from jellybean.whatif.view import check_json, check_text

__all__ = [
    "Calendar",
    "Hint",
    "TimedPlan",
    "TraceCheck",
    "calendar_json",
    "calendar_text",
    "check_json",
    "check_text",
    "check_trace",
    "plan_by_time",
    "save_calendar_plans",
    "save_calendar_plot",
    "save_plot",
]
