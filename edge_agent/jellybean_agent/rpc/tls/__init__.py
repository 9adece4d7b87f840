"""TLS below the protocols of the server: its transport, and the connections of a listening socket."""
