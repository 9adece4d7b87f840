"""Requests in flight: admission, attempts over routes, hedging, retries and the collection of answers."""
