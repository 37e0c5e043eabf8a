"""Cases below an answer's meaning: the connection, TLS, proxies, HTTP's framing and its codings."""

import gzip
import zlib
from collections.abc import Iterator

from wire import Talk
from wire_provider import (
    ERROR_JOB,
    JOB,
    LARGE_PAYLOAD,
    PLAIN_ERROR,
    Case,
    Script,
    accepted,
    closes,
    connect,
    drips,
    resets,
    response,
    says,
    says_early,
    silent,
    socks,
    unknown,
    unsent,
)


def network_cases() -> Iterator[Case]:
    """All of them."""
    yield from _before_the_hook()
    yield from _connection()
    yield from _framing()
    yield from _codings()
    yield from _broken_http()


def _before_the_hook() -> Iterator[Case]:
    """Nothing left this machine, whatever the exception is called."""
    yield unsent("a name that does not resolve", unreachable="no_name")
    yield unsent("a refused connection", unreachable="refused")
    yield unsent("a connection that is never taken", unreachable="stalled")
    yield unsent("TLS: another name in the certificate", tls="another_name")
    yield unsent("TLS: a certificate that nobody signed", tls="untrusted")
    yield unsent("TLS: an expired certificate", tls="expired")
    yield unsent("TLS: the handshake closed", closes, tls="not_tls")
    yield unsent("TLS: the handshake reset", resets, tls="not_tls")
    yield unsent("TLS: the handshake stalled", silent, tls="not_tls", deadline_s=0.4)
    yield unsent(
        "TLS: something else answered", lambda talk: talk.send(response(502, ERROR_JOB)), tls="not_tls"
    )
    answers = {
        "401": response(401, PLAIN_ERROR),
        "403": response(403),
        "407": response(407, b"", "Proxy-Authenticate: Basic"),
        "502 with an id": response(502, ERROR_JOB),
        "503": response(503),
        "no HTTP": b"550 go away\r\n",
        "half a head": b"HTTP/1.1 200 Connec",
    }
    for name, raw in answers.items():
        yield unsent(f"CONNECT answered by {name}", connect(raw), proxied="connect")
    yield unsent("CONNECT closed", connect(b""), proxied="connect")
    yield unsent("CONNECT reset", connect(b"", resets), proxied="connect")
    yield unsent("CONNECT stalled", silent, proxied="connect", deadline_s=0.4)
    established = response(200, framing="close")
    yield unsent("CONNECT taken, then closed", connect(established), proxied="connect")
    yield unsent("CONNECT taken, then reset", connect(established, resets), proxied="connect")
    yield unsent(
        "CONNECT taken, then silence", connect(established, silent), proxied="connect", deadline_s=0.4
    )
    yield unsent(
        "CONNECT taken, then no TLS",
        connect(established, lambda talk: talk.send(response(201, JOB))),
        proxied="connect",
    )
    for reply in (1, 2, 5, 8):
        yield unsent(f"SOCKS answered by {reply}", socks(reply), proxied="socks")
    yield unsent("SOCKS closed", closes, proxied="socks")
    yield unsent("SOCKS stalled", silent, proxied="socks", deadline_s=0.4)
    yield unsent("SOCKS that wants a password", lambda talk: talk.send(b"\x05\xff"), proxied="socks")


def _connection() -> Iterator[Case]:
    """Bytes may have left, and no answer came."""
    yield unknown("closed after the request", says(b""), "no_answer")
    yield unknown("reset after the request", says(b"", "reset"), "no_answer")
    yield unknown("silence past the deadline", silent, "no_answer", deadline_s=0.4)
    yield unknown(
        "closed while the hook ran", _when_let_go(closes), "no_answer", in_hook="until_the_server_ended"
    )
    yield unknown(
        "reset while the hook ran", _when_let_go(resets), "no_answer", in_hook="until_the_server_ended"
    )
    yield unknown("TLS: closed after the handshake", closes, "no_answer", tls="trusted")
    yield unknown("TLS: closed after the request", says(b""), "no_answer", tls="trusted")
    yield accepted("TLS: a whole answer", says(response(201, JOB)), tls="trusted")
    yield unknown(
        "TLS: an answer cut without goodbye",
        says(response(201, JOB[:-1], framing="close"), "reset"),
        "answer_cut",
        "job-1",
        tls="trusted",
    )
    yield accepted("SOCKS: a whole answer", socks(0, says(response(201, JOB))), proxied="socks")
    yield unknown("SOCKS: closed after the request", socks(0, says(b"")), "no_answer", proxied="socks")
    # A server that closes an idle connection says so before it has read anything.
    yield unknown(
        "408 said while the hook ran",
        _when_let_go(lambda talk: talk.send(response(408))),
        "status_408",
        in_hook="until_the_server_ended",
    )
    yield unknown(
        "a body that is never read",
        says_early(b"", "hold"),
        "no_answer",
        payload=LARGE_PAYLOAD,
        deadline_s=0.4,
    )
    for then in ("close", "reset", "hold"):
        yield unknown(
            f"413 while the body is being sent, then {then}",
            says_early(response(413, b'{"error": "too large"}'), then),
            "status_413",
            payload=LARGE_PAYLOAD,
            said="too large",
        )
        yield Case(
            name=f"502 with an id while the body is being sent, then {then}",
            script=says_early(response(502, ERROR_JOB), then),
            verdict="accepted",
            reason="accepted_with_error",
            job_id="job-1",
            unsettled=True,
            payload=LARGE_PAYLOAD,
        )
    yield accepted(
        "100 while the body is being sent, then all of it read",
        _continues,
        payload=LARGE_PAYLOAD,
    )


def _when_let_go(script: Script) -> Script:
    """Not before the hook runs: a client that is still connecting would see no connection at all."""

    def waits(talk: Talk) -> None:
        talk.wait_released()
        script(talk)

    return waits


def _continues(talk: Talk) -> None:
    while b"\r\n\r\n" not in talk.received:
        talk.read()
    talk.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    talk.read_request()
    talk.send(response(201, JOB))


def _framing() -> Iterator[Case]:
    whole = response(201, JOB, framing="chunked")
    yield accepted("chunked", says(whole))
    yield accepted("chunked with trailers", says(whole[:-2] + b"Digest: x\r\nX-Job: y\r\n\r\n"))
    parts = b"".join(b"1;ext=%d\r\n%c\r\n" % (number, byte) for number, byte in enumerate(JOB)) + b"0\r\n\r\n"
    yield accepted(
        "chunked, byte by byte, with extensions", says(response(201, b"", framing="chunked")[:-5] + parts)
    )
    yield accepted("to the connection's end", says(response(201, JOB, framing="close")))
    yield accepted("HTTP/1.0", says(b"HTTP/1.0 201 Created\r\n\r\n" + JOB))
    yield accepted("bare line feeds", says(b"HTTP/1.1 201 Created\nContent-Length: 19\n\n" + JOB))
    yield accepted("more than was announced", says(response(201, JOB) + b"and more"))
    yield accepted("two answers", says(response(201, JOB) + response(201, b'{"job_id": "other"}')))
    yield accepted("a connection that stays open", says(response(201, JOB), "hold"))
    yield accepted("reset after the whole answer", says(response(201, JOB), "reset"))
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n"
    for name, interim in (
        ("100", b"HTTP/1.1 100 Continue\r\n\r\n"),
        ("102", b"HTTP/1.1 102 Processing\r\n\r\n"),
        ("103", hints),
        ("a hundred 103", hints * 100),
        ("100 and 103", b"HTTP/1.1 100 Continue\r\n\r\n" + hints),
    ):
        yield accepted(f"{name} before it", says(interim + response(201, JOB)))
        yield unknown(f"{name} and nothing else", says(interim), "no_answer")
    yield unknown("417", says(response(417)), "status_417")
    yield unknown(
        "cut by its length", says(response(201, b'{"job_id": "a", "x', announce=80)), "answer_cut", "a"
    )
    yield unknown(
        "cut by its length and reset",
        says(response(201, b'{"job_id": "a", "x', announce=80), "reset"),
        "answer_cut",
        "a",
    )
    yield unknown("cut within the id", says(response(201, b'{"job_id": "job', announce=80)), "answer_cut")
    yield unknown("cut in a chunk", says(whole[: whole.index(JOB) + 19 - 1]), "answer_cut", "job-1")
    yield accepted("cut after the last brace", says(whole[:-5]))
    yield unknown("cut in the head", says(b"HTTP/1.1 201 Created\r\nX-Job-Id: a\r\n"), "no_answer", "a")
    yield unknown("a body that drips past the deadline", drips, "answer_cut", "job-1", deadline_s=0.5)
    stops = says(response(201, b'{"job_id": "a",', announce=80), "hold")
    yield unknown("a body that stops", stops, "answer_cut", "a", deadline_s=0.4)
    yield unknown("a head that stops", says(b"HTTP/1.1 201 Created\r\n", "hold"), "no_answer", deadline_s=0.4)


def _codings() -> Iterator[Case]:
    packed = gzip.compress(JOB)
    raw_deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    deflated = raw_deflate.compress(JOB) + raw_deflate.flush()
    for name, body, coding in (
        ("gzip", packed, "gzip"),
        ("x-gzip", packed, "x-gzip"),
        ("GZIP", packed, "GZIP"),
        ("gzip of two members", gzip.compress(JOB[:5]) + gzip.compress(JOB[5:]), "gzip"),
        ("gzip twice", gzip.compress(packed), "gzip, gzip"),
        ("gzip that nobody announced", packed, "identity"),
        ("deflate", zlib.compress(JOB), "deflate"),
        ("raw deflate", deflated, "deflate"),
        ("gzip that isn't", JOB, "gzip"),
    ):
        yield accepted(f"in {name}", says(response(201, body, f"Content-Encoding: {coding}")), said="job-1")
    for coding in ("br", "zstd", "compress", "gzip, br", "x-unheard-of"):
        script = says(response(201, b"\x0b\x09\x80", f"Content-Encoding: {coding}"))
        yield unknown(f"in {coding}", script, "answer_not_json", said="CwmA")
    cut = gzip.compress(b'{"job_id": "a", "noise": "' + bytes(range(32, 33)) * 9 + b'qwertzuiop"}')[:-14]
    yield unknown(
        "in gzip that was cut", says(response(201, cut, "Content-Encoding: gzip")), "answer_not_json", "a"
    )
    bomb = gzip.compress(b'{"job_id": "a", "noise": "' + b"0" * 50_000_000 + b'"}')
    yield unknown("a gzip bomb", says(response(201, bomb, "Content-Encoding: gzip")), "answer_not_json", "a")


def _broken_http() -> Iterator[Case]:
    """What isn't HTTP may name a job all the same: the bytes are kept and searched."""
    for name, raw in (
        ("an illegal header", b"HTTP/1.1 201 Created\r\nBad Header: x\r\n\r\n" + JOB),
        ("a blank before the colon", b"HTTP/1.1 201 Created\r\nServer : x\r\n\r\n" + JOB),
        ("two lengths", b"HTTP/1.1 201 Created\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" + JOB),
        ("a negative length", b"HTTP/1.1 201 Created\r\nContent-Length: -1\r\n\r\n" + JOB),
        ("a coding of transfer", b"HTTP/1.1 201 Created\r\nTransfer-Encoding: gzip\r\n\r\n" + JOB),
        ("a status of two digits", b"HTTP/1.1 20 Created\r\n\r\n" + JOB),
        ("another protocol", b"HTTQ/1.1 201 Created\r\n\r\n" + JOB),
        ("HTTP/0.9", JOB + b"\n"),
    ):
        yield unknown(f"{name}, and an id", says(raw), "no_answer", "job-1", said="job-1")
    apart = says(b"HTTP/1.1 201 Created\r\nBad Header: x\r\n\r\n")
    yield unknown("an illegal header, and the id later", _later(apart, JOB), "no_answer", "job-1")
    yield unknown("a mail server", says(b"220 mail.example ESMTP\r\n"), "no_answer", said="220 mail.example")
    yield unknown("an endless head", says(b"HTTP/1.1 201 Created\r\n" + b"X: y\r\n" * 40_000), "no_answer")
    chunked = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield unknown("no chunk where one is announced", says(chunked + JOB), "answer_cut", "job-1", said="job-1")
    yield unknown(
        "a chunk of a wrong length", says(chunked + b"4\r\n" + JOB + b"\r\n0\r\n\r\n"), "answer_cut", "job-1"
    )


def _later(first: Script, rest: bytes) -> Script:
    def script(talk: Talk) -> None:
        first(talk)
        # It closes only when it has it all, or has waited for more.
        talk.closed_by_peer(0.2)
        talk.send(rest)

    return script
