"""Pipeline parallelism: partitioner, schedule generators, schedule validator and simulator.

Public surface of this package; other packages import from here only. Rooms: `schedule` (a schedule as data),
`schedules` (one generator per published schedule), `partitioning` (layer graph to stages), `collectives` (all-reduces
as data), `estimates` (a transformer's training from its size), `layer_parallelism` (bytes that layers send under data
and tensor parallelism), `sharding` (which dimension of each operator a mesh splits), `model_data_sizes`.
Symbols in the docstrings: D devices, M micro-batches, s a stage (from 0), v stages per device,
F and B forward and backward times; in `estimates` those of the published formulas.
"""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
