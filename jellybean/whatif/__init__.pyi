from .calendar import plan_by_time as plan_by_time
from .check import check_trace as check_trace
