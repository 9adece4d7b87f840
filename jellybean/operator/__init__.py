"""The Kubernetes operator: plans and deploys custom resources of the kind Workflow."""
