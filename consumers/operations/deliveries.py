"""Claims on deliveries and what a download came to. Nothing here downloads or writes a file, and a claim's
lease is never renewed: whoever has lost it can record nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from consumers.operations.ground import Ground, say
from consumers.operations.lifecycle import Cause, Phase
from consumers.operations.queries import Queries
from consumers.providers.download import Downloaded
from consumers.providers.observation import Output
from relay.errors import RelayError

_SQL: Final = Queries("deliveries")

_Connection = psycopg.AsyncConnection[Any]


class ClaimLost(RelayError):
    """The lease ran out, or a person moved the delivery: what this worker still has is not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery's row with what it needs of its parent, whose outputs it stores."""

    operation_id: UUID
    version: int
    phase: str
    dispatch_no: int
    claim_token: UUID | None
    lease_alive: bool | None
    owner_id: str
    parent_operation_id: UUID
    job_id: str
    provider: str
    account: str
    profile_digest: str
    """Of the profile that was approved: by it the job is observed."""
    current_digest: str
    """Of the account's profile of today: by it files are fetched, so that mending it mends what is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One output as recorded. `stored_key` is None until it is placed."""

    ordinal: int
    name: str
    url: str
    content_type: str | None
    expected_bytes: int | None
    expected_sha256: str | None
    stored_key: str | None


@dataclass(frozen=True, slots=True)
class Held:
    """A delivery under a live claim."""

    delivery: Delivery
    token: UUID
    actor: str


async def load(connection: _Connection, operation_id: UUID) -> Delivery | None:
    """None when the row isn't visible, or isn't a delivery's."""
    async with connection.cursor(row_factory=class_row(Delivery)) as cursor:
        await cursor.execute(_SQL["load"], {"operation_id": operation_id})
        return await cursor.fetchone()


async def claim(
    connection: _Connection, delivery: Delivery, *, dispatch_no: int, token: UUID, actor: str, lease_s: float
) -> Held | None:
    """Claim the delivery for `lease_s` and record its attempt, in one transaction. None: it isn't to be had
    (done, under way, cancelled, or not yet)."""
    held = Held(delivery, token, actor)
    async with connection.transaction():
        await say(connection, Ground(actor, Cause.CLAIM, f"dispatch {dispatch_no}"))
        named = {"operation_id": delivery.operation_id, "token": token, "dispatch_no": dispatch_no}
        row = await _one(connection, "claim", named | {"worker": actor, "lease_s": lease_s})
        if row is None:
            return None
        if row[0]:
            await _move(connection, held, Phase.CANCELLED, Cause.CANCEL, "requested before downloading")
            return None
        await connection.execute(_SQL["insert_attempt"], named | {"worker": actor})
    return held


async def parts(connection: _Connection, delivery: Delivery) -> list[Part]:
    """The parent's outputs, in their order."""
    async with connection.cursor(row_factory=class_row(Part)) as cursor:
        await cursor.execute(_SQL["outputs"], {"parent": delivery.parent_operation_id})
        return await cursor.fetchall()


async def record_part(
    connection: _Connection, held: Held, part: Part, *, key: str, downloaded: Downloaded
) -> bool:
    """The output is placed under `key`. True: somebody asked for a cancel. Raises ClaimLost."""
    async with connection.transaction():
        cancelled = await _require(connection, held)
        await connection.execute(
            _SQL["record_part"],
            {
                "parent": held.delivery.parent_operation_id,
                "ordinal": part.ordinal,
                "key": key,
                "size": downloaded.size,
                "sha256": downloaded.sha256,
                "content_type": downloaded.content_type,
            },
        )
    return cancelled


async def refresh_urls(connection: _Connection, held: Held, outputs: Sequence[Output]) -> None:
    """Take the URLs of a new observation for what isn't stored yet; an output's name must be the same.
    Raises ClaimLost."""
    async with connection.transaction():
        await _require(connection, held)
        for ordinal, output in enumerate(outputs):
            await connection.execute(
                _SQL["refresh_url"],
                {
                    "parent": held.delivery.parent_operation_id,
                    "ordinal": ordinal,
                    "name": output.name,
                    "url": output.url,
                },
            )


async def stored(connection: _Connection, held: Held) -> None:
    """claimed → stored. Raises ClaimLost, and RuntimeError when a part is missing."""
    async with connection.transaction():
        await _require(connection, held)
        missing = await _one(connection, "missing_parts", {"parent": held.delivery.parent_operation_id})
        if missing is None or missing[0] != 0:
            raise RuntimeError(f"delivery {held.delivery.operation_id} lacks {missing} of its parts")
        await _finish(connection, held, "accepted", "stored", {})
        await _move(connection, held, Phase.STORED, Cause.DOWNLOAD, "stored")


async def retry(
    connection: _Connection, held: Held, *, reason: str, evidence: dict[str, Any], delay_s: float
) -> None:
    """claimed → prepared, not before `delay_s` from now; what is stored stays stored. Raises ClaimLost."""
    async with connection.transaction():
        await _require(connection, held)
        await _finish(connection, held, "unknown", reason, evidence)
        await _move(connection, held, Phase.PREPARED, Cause.RETRY, reason, delay_s=delay_s)


async def hold(connection: _Connection, held: Held, *, reason: str, evidence: dict[str, Any]) -> None:
    """claimed → held, with the review that the database opens: trying again alone won't help. Raises
    ClaimLost."""
    async with connection.transaction():
        await _require(connection, held)
        await _finish(connection, held, "refused", reason, evidence)
        await _move(connection, held, Phase.HELD, Cause.HOLD, reason)


async def expired(
    connection: _Connection, held: Held, *, evidence: dict[str, Any], deadline_s: float
) -> None:
    """claimed → failed, with a review: the provider no longer gives the files out. Raises ClaimLost."""
    async with connection.transaction():
        await _require(connection, held)
        await _finish(connection, held, "refused", "output_expired", evidence)
        await _move(connection, held, Phase.FAILED, Cause.DOWNLOAD, "output_expired")
        await connection.execute(
            _SQL["open_review"],
            {
                "operation_id": held.delivery.operation_id,
                "token": held.token,
                "deadline_s": deadline_s,
                "evidence": Jsonb(evidence | _about(held.delivery)),
            },
        )


async def cancel(connection: _Connection, held: Held) -> None:
    """claimed → cancelled, as was requested meanwhile. Raises ClaimLost."""
    async with connection.transaction():
        await _require(connection, held)
        await _finish(connection, held, "refused", "cancelled", {})
        await _move(connection, held, Phase.CANCELLED, Cause.CANCEL, "requested while downloading")


async def tries(connection: _Connection, delivery: Delivery) -> tuple[int, timedelta]:
    """How many downloads were begun since the delivery was last asked for, and for how long that has gone."""
    row = await _one(connection, "tries", {"operation_id": delivery.operation_id})
    count, since = row if row is not None else (0, None)
    return int(count), since or timedelta()


async def phases(connection: _Connection, operation_ids: Iterable[UUID]) -> dict[UUID, str]:
    """Of each that is a delivery, or has one: the delivery's phase. The others are left out."""
    cursor = await connection.execute(_SQL["phases"], {"operation_ids": list(operation_ids)})
    return {operation_id: str(phase) for operation_id, phase in await cursor.fetchall()}


async def require(connection: _Connection, held: Held) -> None:
    """Raises ClaimLost unless the claim still stands."""
    async with connection.transaction():
        await _require(connection, held)


def _about(delivery: Delivery) -> dict[str, Any]:
    return {"parent_operation_id": str(delivery.parent_operation_id), "job_id": delivery.job_id}


async def _require(connection: _Connection, held: Held) -> bool:
    """Lock the delivery under its claim. Returns whether a cancel was requested; raises ClaimLost."""
    row = await _one(
        connection, "lock_claim", {"operation_id": held.delivery.operation_id, "token": held.token}
    )
    if row is None:
        raise ClaimLost(
            f"The claim on delivery {held.delivery.operation_id} is gone.",
            meaning="Somebody else has the delivery now; nothing of this attempt is recorded.",
        )
    return bool(row[0])


async def _finish(
    connection: _Connection, held: Held, outcome: str, reason: str, evidence: dict[str, Any]
) -> None:
    await connection.execute(
        _SQL["finish_attempt"],
        {"token": held.token, "outcome": outcome, "reason": reason, "evidence": Jsonb(evidence)},
    )


async def _move(
    connection: _Connection,
    held: Held,
    phase: Phase,
    cause: Cause,
    reason: str,
    *,
    delay_s: float | None = None,
) -> None:
    await say(connection, Ground(held.actor, cause, reason, attempt_id=held.token))
    await connection.execute(
        _SQL["end_claim"],
        {
            "operation_id": held.delivery.operation_id,
            "token": held.token,
            "phase": phase,
            "reason": reason,
            "delay_s": delay_s,
        },
    )


async def _one(connection: _Connection, query: str, parameters: dict[str, Any]) -> tuple[Any, ...] | None:
    cursor = await connection.execute(_SQL[query], parameters)
    row: tuple[Any, ...] | None = await cursor.fetchone()
    return row
