"""The agent that runs on a worker. Other packages import from here, never from a subpackage.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

from jellybean_protos.library_telemetry import turn_off_telemetry
from jellybean_protos.public_names import public_names

# Before onnxruntime is imported: its thread for telemetry would also run while the pool forks.
turn_off_telemetry()

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
