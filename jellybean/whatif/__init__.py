"""What a rate trace would do to the current plan: `jellybean plan DIR --check TRACE`."""

from jellybean.whatif.check import Check, Hint, check_trace
from jellybean.whatif.plot import save_plot
from jellybean.whatif.view import check_json, check_text

__all__ = ["Check", "Hint", "check_json", "check_text", "check_trace", "save_plot"]
