"""Commands for Kubernetes clusters: render, deploy, status, rollback, undeploy, discover, operator."""
