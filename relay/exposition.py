"""Serves to Prometheus what this process counts; which counters there are, other modules say."""

from prometheus_client import start_http_server

from relay.errors import UsageError


def serve(port: int) -> None:
    """Serve ``/metrics`` on `port`; 0 is off. Raises UsageError when the port can't be had."""
    if not port:
        return
    try:
        start_http_server(port)
    except OSError as error:
        raise UsageError(
            f"The metrics port {port} can't be used: {error.strerror}.",
            remedy="Set RELAY_METRICS_PORT to a free port, or to 0 for none.",
        ) from None
