"""Commands top and dashboard: live metrics of a running plan."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from jellybean.cli.app import Directory, Json, app, example
from jellybean.cli.console import out, print_json
from jellybean.cli.serving.gateway_options import (
    GatewayOptions,
    OfWorkflow,
    takes_gateway,
)
from jellybean.display.terminal import BAD
from jellybean.errors import JellyBeanError
from jellybean.serving.top.alerts import alert_groups, alert_rules
from jellybean.serving.top.dashboard import dashboard as grafana
from jellybean.serving.top.kubernetes import dashboard_config_map, prometheus_rule

_WINDOW_S, _ONCE_WINDOW_S = 10.0, 1.0  # over which rates are averaged: on a screen, and of one measurement


@app.command(
    epilog=example("jellybean top my-digits", "jellybean top my-digits --once", "jellybean top my-digits --json")
)
@takes_gateway
def top(
    directory: Directory,
    once: Annotated[bool, typer.Option("--once", help="Print one measurement and exit.")] = False,
    window: Annotated[
        float | None,
        typer.Option(
            min=0.2,
            max=3600.0,
            help=f"Seconds over which rates are averaged; default: {_WINDOW_S:g}, or {_ONCE_WINDOW_S:g} for one "
            "measurement (--once, --json).",
        ),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds between updates.")] = 1.0,
    workflow: OfWorkflow = "",
    at: GatewayOptions = GatewayOptions(),
    json: Json = False,
) -> None:
    """Watch the running plan: rates, latency, queues, planned and measured utilisation, cost. Ctrl-C quits."""
    from jellybean.serving.top.top import Scrape, Watcher, top_of
    from jellybean.serving.top.view import render

    endpoint = at.endpoint(directory)
    watcher = Watcher(directory, endpoint, workflow)
    scrapes: deque[Scrape] = deque([watcher.scrape()])
    if once or json or not out.is_terminal:
        time.sleep(window or _ONCE_WINDOW_S)
        found = top_of(scrapes[0], watcher.scrape())
        if json:
            print_json(dataclasses.asdict(found))
        else:
            out.print(render(found, fold=False), crop=False)
        return
    try:
        with Live(Text("waiting for the first measurement"), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                try:
                    scrapes.append(watcher.scrape())
                except JellyBeanError as error:  # the gateway is restarting or was stopped
                    live.update(Text(str(error), BAD), refresh=True)
                    continue
                while len(scrapes) > 2 and scrapes[-1].at_s - scrapes[1].at_s >= (window or _WINDOW_S):
                    scrapes.popleft()
                live.update(render(top_of(scrapes[0], scrapes[-1])), refresh=True)
    except KeyboardInterrupt:
        return


@app.command(
    epilog=example(
        "jellybean dashboard > jellybean.json",
        "jellybean dashboard --alerts > jellybean.rules.yaml",
        "jellybean dashboard --alerts --kubernetes | kubectl apply --namespace monitoring -f -",
    )
)
def dashboard(
    alerts: Annotated[bool, typer.Option("--alerts", help="Print alert rules for Prometheus instead.")] = False,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="As a Kubernetes object: a PrometheusRule, or a ConfigMap that Grafana's chart finds."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Print a Grafana dashboard for the metrics of `up --metrics-port`, or alert rules for Prometheus.

    A dashboard is JSON in any case; with --json so are alert rules and objects.
    """
    if kubernetes:
        from jellybean_k8s import to_yaml

        found = prometheus_rule() if alerts else dashboard_config_map()
        print_json(found) if json else typer.echo(to_yaml(found), nl=False)
    elif json and alerts:
        print_json(alert_groups())
    elif alerts:
        typer.echo(alert_rules(), nl=False)
    else:
        print_json(grafana())
