"""What has left its prediction while it was served, and what audits say of the answers."""
