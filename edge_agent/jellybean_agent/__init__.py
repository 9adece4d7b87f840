"""The agent that runs on a worker. Other packages import from here, never from a subpackage.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

import lazy_loader

from jellybean_protos.library_telemetry import turn_off_telemetry

# Before onnxruntime is imported, whose thread for telemetry would also run while the process pool forks.
turn_off_telemetry()

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
