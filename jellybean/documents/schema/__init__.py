"""Pydantic models of the documents, the YAML reader and the translation of validation errors."""
