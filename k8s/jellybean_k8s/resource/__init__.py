"""The custom resource Workflow: definition, schema, access rights."""
