"""Pipeline-parallel training over torch.distributed, with the schedules that the simulator times.

Subpackages: `models` (the user's model and its weights), `data`, `processes` (ranks, messages, launch), `stages` (stage
modules, interpreter, updates), `checkpoints`. Needs torch: pip install 'jellybean-serving[train]'.
"""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
