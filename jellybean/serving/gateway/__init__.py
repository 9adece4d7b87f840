"""The gateway: admits requests, draws a route for each, retries lost attempts, collects answers."""
