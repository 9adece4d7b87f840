"""Plans on Kubernetes: manifests as a pure function of plan and settings, and their deployment to a cluster.

Public surface of this package; other packages import from here only. Subpackages: `manifests` (pure rendering),
`resource` (the custom resource Workflow), `cluster` (calls to the API server). Names are loaded on first use (PEP 562).
"""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
