"""The certificate authority for development, and the enrolment of boxes that join."""
