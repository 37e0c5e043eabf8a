"""Claims on operations, and the one transaction that stands before the first byte of a POST.

A claim's token is the id of the one attempt that it may make. Nothing here sends anything.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Hold
from consumers.operations.queries import Queries
from consumers.operations.specification import Reference, content_of
from relay import failpoints
from relay.errors import RelayError, Unavailable

_SQL: Final = Queries("claims")

_LIMITED_BY: Final = {Hold.ALLOWANCE: "the owner's allowance", Hold.BATCH: "its batch's limits"}
HOOK_TIMEOUT_MS: Final = 5_000
"""Lock and statement timeout before the first byte: a connection to the provider is open and waiting."""


class OperationMissing(RelayError):
    """The event's operation isn't visible: the walsender can ship a commit before it is."""


class ClaimLost(RelayError):
    """The claim is no longer this worker's, or may no longer be used: nothing may be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An operation under a live claim. `token` is the id of the attempt that it may make; `repeats` that of
    the first one of which nothing is known, where this claim is for a declared replay of it."""

    operation_id: UUID
    token: UUID
    repeats: UUID | None
    dispatch_no: int
    kind: str
    owner_id: str
    provider: str
    account: str
    profile_digest: str
    specification_hash: str
    payload: str | None
    payload_ref: str | None
    payload_sha256: str | None
    payload_bytes: int | None
    payload_version: int
    max_cost: Decimal
    cost_unit: str
    cancel_requested: bool

    @property
    def content(self) -> str | Reference:
        """The payload's text, or what stands for it."""
        return content_of(self.payload, self.payload_ref, self.payload_sha256, self.payload_bytes)


@dataclass(frozen=True, slots=True)
class NotClaimed:
    """The event asks for what is done, under way or held: acknowledge it without effect."""

    why: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an event asks to send. `waited`: it was put into the line of its account's limits; `waits`: its
    turn hasn't come."""

    provider: str
    profile_digest: str
    account: str
    waited: bool
    waits: bool | None


async def wanted(
    connection: psycopg.AsyncConnection[Any], operation_id: UUID, dispatch_no: int
) -> Wanted | None:
    """None when the event asks for nothing any more."""
    parameters = {"operation_id": operation_id, "dispatch_no": dispatch_no}
    row = await _one(connection, _SQL["wanted"], parameters)
    return None if row is None else Wanted(*row)


async def claim(
    connection: psycopg.AsyncConnection[Any],
    *,
    operation_id: UUID,
    dispatch_no: int,
    token: UUID,
    worker: str,
    lease_s: float,
    event_version: int | None = None,
) -> Claim | NotClaimed:
    """Claim the operation and reserve its maximum cost, in one transaction.

    Raises Unavailable while the dispatch gate is closed, and OperationMissing when there is no such row, or
    only one from before the event's version: it is in a commit that isn't visible yet.
    What doesn't fit its allowance or its batch, or whose provider is paused, is held in the same transaction.
    """
    async with connection.transaction():
        gate = await _one(connection, _SQL["gate"], {})
        if gate is not None and gate[0] is not None:
            raise Unavailable(
                f"Dispatch is closed: {gate[0]}.",
                meaning="Nothing is claimed and nothing is sent until the relay has verified this database.",
                remedy="Look at `relay status`; is `relay run` running? After an accepted rewind,"
                " `relay ops reconcile`.",
            )
        await say(connection, Ground(worker, Cause.CLAIM, f"dispatch {dispatch_no}"))
        async with connection.cursor(row_factory=class_row(Claim)) as cursor:
            await cursor.execute(
                _SQL["claim"],
                {
                    "token": token,
                    "worker": worker,
                    "lease_s": lease_s,
                    "operation_id": operation_id,
                    "dispatch_no": dispatch_no,
                },
            )
            won = await cursor.fetchone()
        if won is None:
            return await _why_not(connection, operation_id, dispatch_no, event_version or 0)
        if won.cancel_requested and won.repeats is not None:
            await _unreplay(connection, won, worker, "a cancel was requested")
            return NotClaimed("a cancel was requested, and an earlier request of it may have made a job")
        if won.cancel_requested:
            await _end(
                connection, won, _SQL["cancel"], Ground(worker, Cause.CANCEL, "requested before sending")
            )
            return NotClaimed("a cancel was requested")
        paused = await _one(connection, _SQL["paused"], {"provider": won.provider, "account": won.account})
        if paused is not None:
            await hold(connection, won, Hold.PAUSED, worker, f"provider account paused: {paused[0]}")
            return NotClaimed("the provider account is paused")
        reserved = await _one(connection, _SQL["reserve"], {"operation_id": operation_id, "token": token})
        misfit = Hold.ALLOWANCE if reserved is None else reserved[0]
        if misfit is not None:
            hold_for = Hold(misfit)
            await hold(connection, won, hold_for, worker, f"{won.max_cost} {won.cost_unit} doesn't fit")
            return NotClaimed(f"it doesn't fit {_LIMITED_BY[hold_for]}")
        failpoints.hit(failpoints.DISPATCH_CLAIM_UNCOMMITTED)
        return won


async def hold(
    connection: psycopg.AsyncConnection[Any],
    claimed: Claim,
    reason: Hold,
    worker: str,
    words: str,
    *,
    incident: dict[str, Any] | None = None,
) -> None:
    """claimed → held, before anything was sent. The reservation is given back by the database. What was to be
    replayed is uncertain again instead: a hold would hide that an earlier request may have made a job.

    `incident` is evidence for one that crosses the claim's boundary. Raises ClaimLost when the claim is gone.
    """
    async with connection.transaction():
        if claimed.repeats is not None:
            await _unreplay(connection, claimed, worker, words)
        else:
            await _end(connection, claimed, _SQL["hold"], Ground(worker, Cause.HOLD, words), hold=str(reason))
        if incident is not None:
            await connection.execute(
                _SQL["open_incident"],
                {
                    "operation_id": claimed.operation_id,
                    "attempt_id": None,
                    "boundary": "claim",
                    "what": words,
                    "evidence": Jsonb(incident),
                },
            )


async def earlier_request(
    connection: psycopg.AsyncConnection[Any], claimed: Claim, request_sha256: str
) -> str | None:
    """The digest of an earlier attempt's request that differs from this one, if any such was ever sent."""
    parameters = {"operation_id": claimed.operation_id, "request_sha256": request_sha256}
    row = await _one(connection, _SQL["earlier_request"], parameters)
    return None if row is None else str(row[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What is recorded of a submission before its first byte. Times in seconds."""

    request_sha256: str
    idempotency_key: str | None
    spool: str
    deadline_s: float
    margin_s: float
    late_delivery_s: float


async def begin_submission(
    connection: psycopg.AsyncConnection[Any], claimed: Claim, sending: Sending, worker: str
) -> None:
    """claimed → submitting, with its attempt, durably. After this returns, and only then, bytes may leave.

    Raises ClaimLost when the claim, lease, gate, pause or a cancel forbids it; any error of psycopg, a COMMIT
    whose answer was lost included, means the same to the caller: send nothing. Raises RuntimeError when a
    transaction is open: inside it this one would be a savepoint, and its end no commit.
    """
    if connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE:
        raise RuntimeError("begin_submission needs a connection without an open transaction")
    lease_s = sending.deadline_s + sending.margin_s
    async with connection.transaction():
        await connection.execute(_SQL["durable"], {"timeout_ms": str(HOOK_TIMEOUT_MS)})
        await connection.execute(
            _SQL["insert_attempt"],
            {
                "token": claimed.token,
                "operation_id": claimed.operation_id,
                "dispatch_no": claimed.dispatch_no,
                "worker": worker,
                "request_sha256": sending.request_sha256,
                "idempotency_key": sending.idempotency_key,
                "spool": sending.spool,
                "late_delivery_s": lease_s + sending.late_delivery_s,
            },
        )
        await say(connection, Ground(worker, Cause.SUBMIT, "before the first byte", attempt_id=claimed.token))
        moved = await _one(
            connection,
            _SQL["submit"],
            {"operation_id": claimed.operation_id, "token": claimed.token, "lease_s": lease_s},
        )
        if moved is None:
            raise ClaimLost(f"Operation {claimed.operation_id} may no longer be sent under this claim.")
        failpoints.hit(failpoints.DISPATCH_HOOK_UNCOMMITTED)


async def _unreplay(
    connection: psycopg.AsyncConnection[Any], claimed: Claim, worker: str, words: str
) -> None:
    ground = Ground(worker, Cause.UNREPLAYED, words, attempt_id=claimed.repeats)
    await _end(connection, claimed, _SQL["unreplay"], ground, reason="unreplayed")


async def _end(
    connection: psycopg.AsyncConnection[Any],
    claimed: Claim,
    query: LiteralString,
    ground: Ground,
    **more: str,
) -> None:
    await say(connection, ground)
    done = await connection.execute(
        query, {"operation_id": claimed.operation_id, "token": claimed.token, **more}
    )
    if done.rowcount != 1:
        raise ClaimLost(f"The claim on operation {claimed.operation_id} was lost before {ground.cause}.")


async def _why_not(
    connection: psycopg.AsyncConnection[Any], operation_id: UUID, dispatch_no: int, event_version: int
) -> NotClaimed:
    row = await _one(connection, _SQL["look"], {"operation_id": operation_id})
    if row is None:
        raise OperationMissing(f"There is no operation {operation_id} (yet).")
    phase, current, version, in_question = row
    if version < event_version:
        raise OperationMissing(
            f"The operation {operation_id} is at version {version}, and not (yet) at the event's "
            f"{event_version}."
        )
    if current != dispatch_no:
        return NotClaimed(f"the event is of dispatch {dispatch_no}, the operation at {current}")
    if phase == "prepared" and in_question:
        return NotClaimed(
            f"a review asks about an earlier request, and nothing is sent until it is answered:"
            f" `relay review show {operation_id}`"
        )
    return NotClaimed(f"it is {phase}" if phase != "prepared" else "it may not be claimed yet")


async def _one(
    connection: psycopg.AsyncConnection[Any], query: LiteralString, parameters: dict[str, Any]
) -> tuple[Any, ...] | None:
    cursor = await connection.execute(query, parameters)
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return row
