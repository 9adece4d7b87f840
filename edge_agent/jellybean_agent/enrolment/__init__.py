"""How a box joins a gateway: a token, then a certificate, the plan and the models."""
