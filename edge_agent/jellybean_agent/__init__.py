"""The agent that runs on a worker. Other packages import from here, never from a subpackage.

Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
