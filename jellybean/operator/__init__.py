"""The custom resource Workflow of Kubernetes: what it says, and the operator that plans and deploys it."""
