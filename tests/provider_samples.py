"""Profiles and answers for tests of the provider's side."""

from consumers.providers.answer import Answer
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import SHIPPED
from consumers.providers.request import Request, render_submit

OPERATION: str = "0193e4b2-7d5a-7c3e-9f00-0123456789ab"
PAYLOAD: bytes = b'{"prompt": "a heron at dawn", "seed": 12345678901234567890.10}'


def profile(name: str, *changes: tuple[str, str]) -> Profile:
    """The shipped profile `name`, with texts of its document replaced."""
    text = (SHIPPED / f"{name}.yaml").read_text()
    for old, new in changes:
        assert old in text, f"{name}.yaml has no {old!r}"
        text = text.replace(old, new, 1)
    return Profile.parse(text, source=f"{name}.yaml")


def submission(
    of: Profile, base_url: str, *, payload: bytes = PAYLOAD, secret: str | None = "s3cret-Token"
) -> Request:
    return render_submit(
        of, base_url, operation_id=OPERATION, payload=payload, secret=secret, idempotency_key=None
    )


def answered(status: int | None, body: bytes = b"", *headers: tuple[str, str], whole: bool = True) -> Answer:
    """An answer to a request that was sent."""
    return Answer(
        status=status,
        headers=headers,
        body=body,
        body_complete=whole and status is not None,
        sent=True,
        hook_returned=True,
        error=None if whole else "RemoteProtocolError: peer closed connection",
        secrets=("s3cret-Token",),
    )
