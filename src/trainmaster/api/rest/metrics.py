"""``GET /metrics``: for Prometheus, which sends a token as everybody does."""

from __future__ import annotations

from fastapi import Response

from trainmaster.api.rest.state import Reader, Routes, State
from trainmaster.service.server_metrics import server_metrics
from trainmaster.spec.errors import imports_of

router = Routes(tags=["server"])


@router.get("/metrics", response_class=Response)
def metrics(state: State, caller: Reader) -> Response:
    """Numbers of the runs that the caller sees, and how busy this process is, in Prometheus' text format."""
    with imports_of("server", "/metrics"):
        from prometheus_client import (
            CONTENT_TYPE_LATEST,
            CollectorRegistry,
            Gauge,
            ProcessCollector,
            generate_latest,
        )
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    lag = Gauge("trainmaster_loop_lag_seconds", "How late the server's loop is.", registry=registry)
    lag.set(state.lag.seconds)
    for found in server_metrics(state.service, caller):
        labels = [found.label] if found.label else []
        gauge = Gauge(f"trainmaster_{found.name}", found.help, labels, registry=registry)
        for label, value in found.values.items():
            (gauge.labels(label) if labels else gauge).set(value)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
