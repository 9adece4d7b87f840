# An agent: runs the models of one worker. Neither solver nor torch; about 220 MB of packages, most of it ONNX Runtime.
# docker buildx build --platform linux/amd64,linux/arm64 -f k8s/images/agent.Dockerfile -t REGISTRY/jellybean-agent:TAG .
# EXTRA: of pyproject.toml, with the execution provider; its packages are pinned in k8s/images/EXTRA.txt. Of linux/amd64 alone:
# --build-arg EXTRA=agent-cuda (about 2 GB, most of it CUDA and cuDNN), --build-arg EXTRA=agent-openvino
# CUDA comes as NVIDIA's wheels, not as a base image: one base for all agents, every version pinned, and the nightly test
# installs the same files without a container. The driver comes from the node, by NVIDIA's container runtime.
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
ARG EXTRA=agent
RUN /opt/jellybean/bin/pip install --no-cache-dir --constraint "k8s/images/$EXTRA.txt" ".[$EXTRA,otel]"
# the distribution has all packages in it; an agent is two of them
RUN cd /opt/jellybean/lib/python3.*/site-packages && rm -r jellybean jellybean_solver jellybean_k8s
RUN /opt/jellybean/bin/pip uninstall --yes setuptools pip

FROM ${PYTHON}
COPY --from=build /opt/jellybean /opt/jellybean
ENV PATH=/opt/jellybean/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# what the container runtime brings of NVIDIA's driver: CUDA, and NVML to measure memory
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["jellybean-agent"]
