"""What an application calls inside its own transaction to prepare an operation. It calls the SQL function
`relay.prepare_operation` and does nothing else: it never commits, and never touches a table.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec
import psycopg

_CALL: Final = (
    "select operation_id, phase, specification_hash, version, job_id from relay.prepare_operation("
    "kind => %s, owner_id => %s, operation_key => %s, payload => %s::jsonb, provider => %s, max_cost => %s,"
    " cost_unit => %s, payload_version => %s, account => %s, source_ref => %s, not_before => %s,"
    " requested_by => %s, traceparent => %s, payload_ref => %s, payload_sha256 => %s, payload_bytes => %s)"
)
_FUNCTION: Final = "relay.prepare_operation("


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """A payload that is elsewhere: ``file:///…``, ``https://…`` or ``s3://bucket/key``, without a credential.
    What was approved is the bytes: `sha256` (hexadecimal) and `size` of them."""

    url: str
    sha256: str
    size: int

    @classmethod
    def to(cls, url: str, content: bytes) -> "PayloadRef":
        """The reference to `content`, which is at `url`."""
        return cls(url=url, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


@dataclass(frozen=True, slots=True)
class Intent:
    """What was approved: the arguments of `relay.prepare_operation`.

    `payload` is JSON text, a PayloadRef, or anything that msgspec encodes as JSON; numbers that must keep
    their digits are given as JSON text or Decimal. NaN and infinities are refused with ValueError: JSON has
    none (RFC 8259, 6), and what was approved would become null. `max_cost` is in `cost_unit`, at most six
    decimals. `source_ref` names the application's approved revision. `traceparent` is a W3C trace context.
    """

    kind: str
    owner_id: str
    operation_key: str
    payload: "str | Mapping[str, Any] | Sequence[Any] | PayloadRef"
    provider: str
    max_cost: Decimal | int
    cost_unit: str = "credit"
    payload_version: int = 1
    account: str = "default"
    source_ref: str | None = None
    not_before: datetime | None = None
    requested_by: str | None = None
    traceparent: str | None = None
    batch_id: UUID | None = None
    """A batch of the owner's that isn't sealed yet (`relay.outbox.batch.prepare_batch`)."""

    def statement(self) -> str:
        """The SQL call, with psycopg's and DB-API's ``%s``."""
        if self.batch_id is None:
            return _CALL
        return _CALL.replace(_FUNCTION, f"relay.in_batch(%s::uuid, {_FUNCTION}") + ")"

    def arguments(self) -> tuple[Any, ...]:
        """In the order of the SQL call."""
        ref = self.payload if isinstance(self.payload, PayloadRef) else None
        batch = () if self.batch_id is None else (str(self.batch_id),)
        return (
            *batch,
            self.kind,
            self.owner_id,
            self.operation_key,
            None if isinstance(self.payload, PayloadRef) else _text(self.payload),
            self.provider,
            self.max_cost,
            self.cost_unit,
            self.payload_version,
            self.account,
            self.source_ref,
            self.not_before,
            self.requested_by,
            self.traceparent,
            ref and ref.url,
            ref and ref.sha256,
            ref and ref.size,
        )


# A Decimal is written as the number it is; msgspec's default would make it a string.
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def _text(payload: str | Mapping[str, Any] | Sequence[Any]) -> str:
    return payload if isinstance(payload, str) else _json(payload)


def _json(payload: Any) -> str:
    found = _not_finite(payload, "payload")
    if found is not None:
        raise ValueError(f"{found} is no number that JSON has (NaN or an infinity).")
    return _ENCODER.encode(payload).decode()


def _not_finite(value: Any, path: str) -> str | None:
    """Where a number stands that JSON can't write; None when there is none."""
    if isinstance(value, float | Decimal):
        return None if math.isfinite(value) else path
    if isinstance(value, Mapping):
        places = ((inner, f"{path}.{name}") for name, inner in value.items())
    elif isinstance(value, list | tuple):
        places = ((inner, f"{path}[{index}]") for index, inner in enumerate(value))
    else:
        return None
    return next((found for inner, place in places if (found := _not_finite(inner, place))), None)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The operation's row as it is now: new, or the existing one with the same specification."""

    operation_id: UUID
    phase: str
    specification_hash: str
    version: int
    job_id: str | None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> "Prepared":
        operation_id, phase, specification_hash, version, job_id = row
        return cls(UUID(str(operation_id)), phase, specification_hash, version, job_id)


class DBAPICursor(Protocol):
    """A DB-API 2.0 cursor whose driver uses the ``%s`` parameter style (PEP 249)."""

    def execute(self, operation: str, parameters: Any, /) -> Any: ...

    def fetchone(self) -> Any: ...


def prepare(target: psycopg.Connection[Any] | DBAPICursor, intent: Intent) -> Prepared:
    """Prepare `intent` in the open transaction of `target`, a psycopg connection or any DB-API cursor.

    Raises the driver's error with SQLSTATE OR001 when the key has another specification (both hashes are in
    the message), OR002 for an unknown provider, OR003 for an unregistered kind, and 40001 under REPEATABLE
    READ or SERIALIZABLE when another transaction prepared the same key: retry the whole transaction.
    """
    if isinstance(target, psycopg.Connection):
        with target.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            cursor.execute(intent.statement(), intent.arguments())
            return Prepared.from_row(_one(cursor.fetchone()))
    target.execute(intent.statement(), intent.arguments())
    return Prepared.from_row(_one(target.fetchone()))


async def prepare_async(target: psycopg.AsyncConnection[Any], intent: Intent) -> Prepared:
    """`prepare` on an asynchronous psycopg connection."""
    async with target.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
        await cursor.execute(intent.statement(), intent.arguments())
        return Prepared.from_row(_one(await cursor.fetchone()))


def _one(row: Any) -> Sequence[Any]:
    if not isinstance(row, (tuple, list)):
        raise TypeError(
            f"relay.prepare_operation gave {type(row).__name__}; use a cursor whose rows are tuples"
        )
    return row
