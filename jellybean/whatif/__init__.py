"""Replay of a rate trace over the current plan: `jellybean plan DIR --check TRACE`."""

from jellybean.whatif.check import Hint, TraceCheck, check_trace
from jellybean.whatif.plot import save_plot
from jellybean.whatif.view import check_json, check_text

__all__ = ["Hint", "TraceCheck", "check_json", "check_text", "check_trace", "save_plot"]
