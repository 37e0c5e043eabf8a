"""Where on the wire a submission may be killed by a test. It never changes what is sent or read."""

from typing import Final

from relay import failpoints

_CONNECTED: Final = "connection.connect_tcp.complete"
_FAILPOINTS: Final = {
    _CONNECTED: failpoints.DISPATCH_CONNECTION_OPEN,
    "http11.send_request_headers.complete": failpoints.DISPATCH_HEADERS_SENT,
    "http11.send_request_body.complete": failpoints.DISPATCH_BODY_SENT,
    "http11.receive_response_headers.complete": failpoints.DISPATCH_HEAD_RECEIVED,
    "http11.receive_response_body.complete": failpoints.DISPATCH_BODY_RECEIVED,
}
"""By httpcore's name of what it has just done (its trace extension)."""


def passed(event: str, *, hook_returned: bool) -> None:
    """Pass the failpoint of a trace `event`. What a proxy's CONNECT does before the hook is no boundary of
    the request."""
    failpoint = _FAILPOINTS.get(event)
    if failpoint is not None and (hook_returned or event == _CONNECTED):
        failpoints.hit(failpoint)
