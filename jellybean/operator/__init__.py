"""The Kubernetes operator: plans and deploys custom resources of the kind Workflow."""

from jellybean_protos.public_names import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
