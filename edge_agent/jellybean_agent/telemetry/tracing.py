"""Reads from OpenTelemetry's environment variables whether requests are traced; imports OpenTelemetry only then."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jellybean_protos.extras import install_command

if TYPE_CHECKING:
    from jellybean_agent.telemetry.spans import SpanFactory

LOG = logging.getLogger("jellybean.tracing")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_traced(environment: Mapping[str, str]) -> bool:
    """True if an export endpoint is set, and traces are not disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    return environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(map(environment.get, _ENDPOINTS))


def make_span_factory(service: str, instance: str, workflow: str, environment: Mapping[str, str]) -> SpanFactory | None:
    """The factory of this process's spans; None when nothing is traced, or OpenTelemetry is missing (logged)."""
    if not is_traced(environment):
        return None
    try:
        from jellybean_agent.telemetry.spans import SpanFactory
    except ModuleNotFoundError as error:
        LOG.warning("nothing is traced: %s; %s, or unset %s", error, install_command("otel"), _ENDPOINTS[1])
        return None
    return SpanFactory(service, instance, workflow, environment).start()
