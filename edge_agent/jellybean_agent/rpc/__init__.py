"""Calls of gRPC's methods without grpc's server: HTTP/2 in this process' event loop, and a lane for one host."""
