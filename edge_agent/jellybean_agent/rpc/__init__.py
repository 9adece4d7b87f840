"""A gRPC server in this process's event loop: HTTP/2, and a shorter protocol on Unix sockets, with their clients."""
