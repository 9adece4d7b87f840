"""How many bytes of requests and answers a gateway keeps besides those that its connections hold."""

MAX_BYTES_IN_FLIGHT = 2**28  # of the inputs of all requests in flight, which are kept for retries; shared by clients
MAX_INCOMPLETE_BYTES = 2**28  # of answers of which parts are missing; shared by workers
