"""The custom resource Workflow: its definition and schema."""
