"""Enrolment at a gateway: exchanges a token for a certificate, then downloads the plan and the models."""
