"""Plans ML workflows over edge and cloud: pure functions from problems to plans.

Nothing here reads files, the clock or the network; a caller passes in a function where one is needed. Other packages
import names from here, not from the subpackages; only `jellybean_solver.pipeline` has a public surface of its own.
Names are loaded on first use (PEP 562): a process pays only for the parts that it uses.
"""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
