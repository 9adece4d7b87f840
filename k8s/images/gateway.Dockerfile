# The gateway of a workflow: an agent's packages, and the solver's, whose routes it draws.
# docker buildx build --platform linux/amd64,linux/arm64 -f k8s/images/gateway.Dockerfile -t REGISTRY/jellybean-gateway:TAG .
ARG PYTHON=python:3.11.7-slim-bookworm
FROM ${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY jellybean jellybean
COPY solver solver
COPY protos protos
COPY edge_agent edge_agent
COPY k8s k8s
COPY examples examples
RUN python -m venv /opt/jellybean
# --build-arg SETUPTOOLS_SCM_PRETEND_VERSION=X.Y.Z: the version, which the tag gives outside an image
ARG SETUPTOOLS_SCM_PRETEND_VERSION
RUN /opt/jellybean/bin/pip install --no-cache-dir --constraint k8s/images/gateway.txt '.[agent,ledger-postgres,otel]' psutil pulp highspy sqlalchemy
RUN /opt/jellybean/bin/pip uninstall --yes setuptools pip

FROM ${PYTHON}
COPY --from=build /opt/jellybean /opt/jellybean
ENV PATH=/opt/jellybean/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["python", "-P", "-m", "jellybean.serving.gateway_main"]
