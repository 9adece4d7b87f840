"""Draft the documents of a project from ONNX files."""
