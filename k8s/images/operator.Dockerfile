# The operator of Workflow resources (k8s/chart); plans and deploys from a pipeline too. All but training and HTTP.
# docker buildx build --platform linux/amd64,linux/arm64 -f k8s/images/operator.Dockerfile -t REGISTRY/jellybean-operator:TAG .
# PYTHON: pin it by digest where builds must be the same for ever: python:3.11.7-slim-bookworm@sha256:...
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
RUN /opt/jellybean/bin/pip install --no-cache-dir --constraint k8s/images/operator.txt '.[operator]'
RUN /opt/jellybean/bin/pip uninstall --yes setuptools pip

FROM ${PYTHON}
COPY --from=build /opt/jellybean /opt/jellybean
ENV PATH=/opt/jellybean/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp
USER 65532:65532
ENTRYPOINT ["jellybean"]
CMD ["operator", "run"]
