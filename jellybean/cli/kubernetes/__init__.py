"""Commands for Kubernetes: render, deploy, status, discover, operator."""
