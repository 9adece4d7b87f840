"""The Open Inference Protocol (KServe V2) over gRPC, for the models that a process serves."""
