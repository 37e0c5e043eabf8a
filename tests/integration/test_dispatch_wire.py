"""A dispatcher against whatever a provider's socket does: phase, evidence, reviews and money as the database
has them, and our credential nowhere in it."""

from decimal import Decimal
from typing import Any, Final, LiteralString
from uuid import UUID, uuid4

import pytest
import structlog
from psycopg import sql

from consumers.dispatch import Dispatch
from consumers.operations import providers
from consumers.runtime import Context
from fix_dispatch import Dispatching
from fix_scene import OWNER, UNIT
from provider_samples import profile
from relay.outbox.intent import Intent, prepare
from wire import CERTIFICATE, WireServer, refused_port
from wire_answers import ECHOES, answer_cases
from wire_network import network_cases
from wire_provider import SECRET, Case

pytestmark = pytest.mark.anyio

CASES: Final = {case.name: case for case in (*network_cases(), *answer_cases())}

TOLD: Final = (
    "a refused connection",
    "TLS: a certificate that nobody signed",
    "closed after the request",
    "cut by its length",
    "cut in the head",
    "an illegal header, and an id",
    "a gzip bomb",
    "in br",
    "307 to here again",
    "303 to a job's own address",
    "201 without one",
    "the id 1e2",
    r'the id "a\u0000b"',
    r'the id "\ud800"',
    'the id "j… of 10002 characters',
    "an id that is no UTF-8",
    "201, a key twice",
    "201, forty ids",
    "429, Retry-After '7'",
    "the id 9007199254740993",
    "the id 514 characters",
    "chunked with trailers",
    "a hundred 103 before it",
    "201, two ids that are declared",
    "502 with an id at the path that is declared for it",
    "rule: 422",
    "rule: 429, Retry-After '7'",
    "rule: 422 with an id in XML",
    "rule: 422 in a coding that we can't read",
    "the credential as it is, echoed",
    "the credential in base64 behind its scheme, echoed in a header",
    "the credential escaped twice, echoed in gzip",
    "the credential percent-encoded twice, echoed without HTTP",
    "the credential as a job's id",
)
"""One of each kind of end."""
BOOKED: Final = {"unsettled": "reserved"}
"""What the accounting of a case is called in the reservation, where it has another name."""


def _approved(dispatching: Dispatching, provider: str) -> UUID:
    intent = Intent(
        kind="generation",
        owner_id=OWNER,
        operation_key=str(uuid4()),
        payload={"prompt": "a heron"},
        provider=provider,
        max_cost=Decimal(5),
        cost_unit=UNIT,
    )
    return prepare(dispatching.connection, intent).operation_id


def _context(dispatching: Dispatching, provider: str, url: str) -> Context:
    name = provider.upper().replace("-", "_")
    settings = dispatching.settings(
        **{f"RELAY_PROVIDER_{name}_URL": url, f"RELAY_PROVIDER_{name}_SECRET": SECRET}
    )
    return Context(
        settings, structlog.get_logger(), dispatching.own_context().stopping, opened_pool=dispatching.pool
    )


async def _dispatch(dispatching: Dispatching, case: Case, operation: UUID, provider: str) -> None:
    event = dispatching.events(operation, "generation.requested")[-1]

    async def handled_at(url: str) -> None:
        context = _context(dispatching, provider, url)
        dispatcher = Dispatch()
        await dispatcher.open(context)
        try:
            await dispatcher.handle(event, context)
        finally:
            await dispatcher.close()

    if case.unreachable:
        await handled_at(f"http://127.0.0.1:{refused_port()}")
        return
    with WireServer(case.script, tls=CERTIFICATE if case.tls else False) as server:
        await handled_at(server.url.replace("http:", "https:") if case.tls else server.url)
        server.released.set()
        server.wait_closed(1)
        assert server.received.count(b"POST ") == (case.verdict != "unsent")


def _everything(dispatching: Dispatching) -> str:
    """Every row of every table, as text: what a topic gets is in the outbox."""
    tables = dispatching.all("select table_name from information_schema.tables where table_schema = 'relay'")
    found: list[str] = []
    for (table,) in tables:
        query = sql.SQL("select t::text from relay.{} t").format(sql.Identifier(table))
        found += [str(row[0]) for row in dispatching.connection.execute(query).fetchall()]
    return "\n".join(found)


async def test_what_a_socket_says_ends_in_the_phase_the_evidence_the_review_and_the_money_of_the_table(
    dispatching: Dispatching, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(TOLD):
        case = CASES[name]
        # A provider of its own: an id that two operations have is another test's, and so is a paused account.
        provider = f"{case.profile}-{number}"
        providers.push(
            dispatching.connection, [profile(case.profile, (f"name: {case.profile}", f"name: {provider}"))]
        )
        operation = _approved(dispatching, provider)
        await _dispatch(dispatching, case, operation, provider)

        phase, reason, job_id = dispatching.row(operation, "phase, phase_reason, job_id")
        ended = f"held({reason})" if phase == "held" else phase
        assert (ended, job_id) == (case.phase, case.job_id), name
        assert _of(dispatching, operation, "select state from relay.reservation") == [
            BOOKED.get(case.accounting, case.accounting)
        ], name
        assert _of(dispatching, operation, "select kind from relay.review") == _reviews(case), name
        assert set(_of(dispatching, operation, "select job_id from relay.remote_job")) == {
            one for one in (case.job_id, *case.candidates) if one is not None
        }, name
        (evidence,) = _of(dispatching, operation, "select evidence from relay.attempt")
        assert (evidence.get("job_id"), tuple(evidence.get("candidates", ()))) == (
            case.job_id,
            case.candidates,
        )
        (outcome,) = _of(dispatching, operation, "select outcome from relay.attempt")
        assert outcome == case.verdict, name
        if case.retry_after_s is not None and case.verdict == "refused":
            (later,) = dispatching.row(operation, "not_before > relay.now() + interval '5 seconds'")
            assert later, name

    said = _everything(dispatching) + caplog.text + "".join(capfd.readouterr())
    for form in (SECRET, *(form for _, form in ECHOES.values())):
        assert form not in said
    assert "secret removed" in said


def _reviews(case: Case) -> list[str]:
    """What a person is asked."""
    if case.verdict == "unknown":
        return ["candidate_id" if case.candidates else "uncertain_submission"]
    if case.unsettled:
        return ["id_with_error"]
    return ["second_id"] if case.candidates else []


def _of(dispatching: Dispatching, operation: UUID, query: LiteralString) -> list[Any]:
    return [row[0] for row in dispatching.all(query + " where operation_id = %s", operation)]
