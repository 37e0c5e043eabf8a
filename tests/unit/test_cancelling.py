"""What a cancel's answer means is decided by status and by how far the request came, and by nothing else."""

import pytest

from consumers.providers.answer import Answer
from consumers.providers.cancelling import classify_cancel


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        *((status, "accepted") for status in (200, 202, 204)),
        *((status, "refused") for status in (400, 401, 403, 404, 405, 409, 410, 422)),
        *((status, "unknown") for status in (301, 307, 408, 425, 429, 500, 502, 503)),
        (None, "unknown"),
    ],
)
def test_only_what_was_taken_or_refused_is_known(status: int | None, outcome: str) -> None:
    answer = Answer(status=status, sent=True, hook_returned=True)
    assert classify_cancel(answer).outcome == outcome


def test_a_request_that_never_left_is_unsent() -> None:
    assert classify_cancel(Answer(error="ConnectError: refused")).outcome == "unsent"
    assert classify_cancel(Answer(hook_error=RuntimeError("no"))).reason == "not_recorded"
