"""The documents as pydantic models, their field types and units, and the YAML reader."""
