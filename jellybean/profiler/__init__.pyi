from .measurement_plan import Scope as Scope
from .profiler import Profiled as Profiled
from .profiler import measurements as measurements
from .profiler import profile as profile
from .profiler import scope_on as scope_on
from .remote.worker_agent import WorkerAgent as WorkerAgent
from .remote.workers import remote_workers as remote_workers
