"""The agent that runs on a worker. Other packages import from here, never from a subpackage.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

import os

import lazy_loader

# Before onnxruntime is imported: otherwise its import starts a thread that looks up a telemetry host, writes an ID to
# the home folder, and runs while the process pool forks.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
