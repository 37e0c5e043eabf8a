"""What Prometheus sees of the webhooks that come in."""

from typing import Final

from prometheus_client import Counter

RECEIVED: Final = Counter(
    "relay_webhooks",
    "By what became of them: asked (its job is looked at), repeated, no_job, unknown_job, unsigned, forged,"
    " stale, malformed, no_secret, unavailable.",
    ["provider", "outcome"],
)
