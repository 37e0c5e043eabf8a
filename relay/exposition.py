"""Serves what this process counts and how it is: `/metrics` to Prometheus, `/healthz` and `/readyz` to
whoever restarts it or sends it traffic. Which counters there are, and what health is, other modules say.
"""

import json
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from relay.errors import UsageError
from relay.health import Report

OK: Final = "200 OK"
UNAVAILABLE: Final = "503 Service Unavailable"
NOT_FOUND: Final = "404 Not Found"


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each request: one that is slow to read its answer must not hide the relay's health."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base's name
        """A request every few seconds is no news."""


def serve(port: int, report: Callable[[], Report] | None = None) -> None:
    """Serve on `port`, from a thread of its own; 0 is off. Raises UsageError when the port can't be had.

    `/healthz` answers 503 when `report` says unhealthy: end the process and start it again. `/readyz`
    answers 503 also while it starts or stops. A standby is ready: it serves by waiting, and a rollout that
    starts the new relay before it ends the old one would wait for ever otherwise. Both are 404 for a process
    that gives no report.
    """
    if not port:
        return
    try:
        server = make_server("0.0.0.0", port, _app(report), _Server, _Quiet)
    except OSError as error:
        raise UsageError(
            f"The metrics port {port} can't be used: {error.strerror}.",
            remedy="Set RELAY_METRICS_PORT to a free port, or to 0 for none.",
        ) from None
    threading.Thread(target=server.serve_forever, name="exposition", daemon=True).start()


def _app(
    report: Callable[[], Report] | None,
) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    metrics: Callable[..., Iterable[bytes]] = make_wsgi_app()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path in {"/", "/metrics"}:
            return metrics(environ, start_response)
        if path not in {"/healthz", "/readyz"} or report is None:
            start_response(NOT_FOUND, [("Content-Type", "text/plain; charset=utf-8")])
            return [b"There are /metrics, and on a relay /healthz and /readyz.\n"]
        seen = report()
        good = seen.healthy if path == "/healthz" else seen.ready
        start_response(OK if good else UNAVAILABLE, [("Content-Type", "application/json")])
        return [json.dumps(seen.document()).encode() + b"\n"]

    return app
