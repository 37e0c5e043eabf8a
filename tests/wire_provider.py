"""What a provider, a proxy or the network can do to one POST: a case is a script for a real socket, and what
has to come of it. The cases are in wire_network.py and wire_answers.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from wire import Talk

Script = Callable[[Talk], None]
SECRET: Final = "s3cret-Token"
JOB: Final = b'{"job_id": "job-1"}'
ERROR_JOB: Final = b'{"error": {"code": "upstream", "job_id": "job-1"}}'
PLAIN_ERROR: Final = b'{"error": {"message": "no"}}'
LONG: Final = "j" * 512
LARGE_PAYLOAD: Final = b'{"prompt": "' + b"x" * 8_000_000 + b'"}'
"""More than the sockets' buffers hold: it is still being sent when an early answer comes."""

Verdict = Literal["accepted", "refused", "unsent", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that happens, and what follows. `said`: text that the evidence has to hold."""

    name: str
    script: Script
    verdict: Verdict
    reason: str
    job_id: str | None = None
    candidates: tuple[str, ...] = ()
    after: str | None = None
    charged: bool | None = None
    hold: str | None = None
    unsettled: bool = False
    generic: bool = False
    retry_after_s: float | None = None
    said: str = ""
    profile: str = "genace"
    payload: bytes = b'{"prompt": "a heron"}'
    deadline_s: float = 30.0
    tls: Literal["", "trusted", "another_name", "untrusted", "expired", "not_tls"] = ""
    proxied: Literal["", "connect", "socks"] = ""
    unreachable: Literal["", "no_name", "refused", "stalled"] = ""
    in_hook: Literal["", "until_the_server_ended"] = ""

    @property
    def phase(self) -> str:
        """Where the operation goes from `submitting` (design-operations, sections 2 and 5)."""
        if self.verdict == "accepted":
            return "accepted"
        if self.verdict == "unknown":
            return "uncertain"
        if self.hold is not None or self.after == "fix":
            return "held(configuration)"
        return "rejected" if self.after == "final" else "prepared"

    @property
    def accounting(self) -> str:
        """What becomes of the reservation; `unsettled` asks a person what it cost."""
        if self.verdict == "unsent" or (self.verdict == "refused" and self.charged is False):
            return "released"
        return "unsettled" if self.unsettled else "reserved"


def response(
    status: int,
    body: bytes = b"",
    *headers: str,
    framing: Literal["length", "chunked", "close"] = "length",
    announce: int | None = None,
) -> bytes:
    """One HTTP/1.1 answer as bytes; with `announce`, one whose Content-Length says something else."""
    lines = [f"HTTP/1.1 {status} Some", *headers]
    if framing == "length":
        lines.append(f"Content-Length: {len(body) if announce is None else announce}")
    if framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def says(raw: bytes, then: Literal["close", "reset", "hold"] = "close") -> Script:
    """Read the request, say `raw`, and end."""

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(raw)
        if then == "hold":
            talk.read_to_the_end()
        elif then == "reset":
            talk.reset()

    return script


def says_early(raw: bytes, then: Literal["close", "reset", "hold"]) -> Script:
    """Say `raw` as soon as the request's head has come, and read no more of its body."""

    def script(talk: Talk) -> None:
        while b"\r\n\r\n" not in talk.received:
            talk.read()
        talk.send(raw)
        if then == "reset":
            talk.reset()
        elif then == "hold":
            talk.wait_released()

    return script


def silent(talk: Talk) -> None:
    """Read everything and say nothing."""
    talk.read_to_the_end()


def closes(talk: Talk) -> None:
    """Close at once."""


def resets(talk: Talk) -> None:
    talk.reset()


def drips(talk: Talk) -> None:
    """A body of which a byte comes now and then, past any deadline."""
    talk.read_request()
    talk.send(response(201, b'{"job_id": "job-1",', announce=10_000))
    while not talk.closed_by_peer(0.02):
        talk.send(b" ")


def connect(raw: bytes, then: Script = closes) -> Script:
    """A proxy that answers CONNECT with `raw`, and then."""

    def script(talk: Talk) -> None:
        talk.read_request()
        talk.send(raw)
        then(talk)

    return script


def socks(reply: int, then: Script = closes) -> Script:
    """A SOCKS5 proxy (RFC 1928) without a password, that answers CONNECT with `reply`, and then."""

    def script(talk: Talk) -> None:
        talk.read_exactly(3)
        talk.send(b"\x05\x00")
        talk.read_exactly(5)
        talk.read_exactly(talk.taken[4] + 2)
        talk.send(bytes([5, reply, 0, 1]) + bytes(6))
        then(talk)

    return script


def unsent(name: str, script: Script = silent, **more: object) -> Case:
    """Proven to have sent nothing."""
    return Case(name=name, script=script, verdict="unsent", reason="not_connected", **more)  # type: ignore[arg-type]


def unknown(name: str, script: Script, reason: str, *candidates: str, **more: object) -> Case:
    """Uncertain, with the ids that were seen."""
    return Case(
        name=name,
        script=script,
        verdict="unknown",
        reason=reason,
        candidates=candidates,
        **more,  # type: ignore[arg-type]
    )


def accepted(name: str, script: Script, job_id: str = "job-1", **more: object) -> Case:
    """Accepted by a rule of the profile, as `job_id`."""
    said = {"reason": "accepted"} | more
    return Case(name=name, script=script, verdict="accepted", job_id=job_id, **said)  # type: ignore[arg-type]
