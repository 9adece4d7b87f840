"""Pipeline-parallel training over torch.distributed, with the schedules that the simulator times.

Subpackages: `models` (the user's model and its weights), `data`, `processes` (ranks, messages, launch), `stages` (stage
modules, interpreter, updates), `checkpoints`. Needs torch: pip install 'jellybean-serving[train]'.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
