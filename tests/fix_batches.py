"""Batches on the stage, made and joined by an application's login."""

from dataclasses import dataclass
from uuid import UUID, uuid4

from fix_operations import APPLICATION, OWNER, Stage


@dataclass(frozen=True, slots=True)
class Batch:
    batch_id: UUID
    members: list[UUID]


def make_batch(
    stage: Stage,
    members: int = 0,
    *,
    seal: bool = True,
    each: str = "5",
    max_cost: str | None = None,
    max_in_flight: int | None = None,
) -> Batch:
    """A batch of `OWNER`'s with so many members, which cost `each` at most."""
    with stage.acting(APPLICATION):
        made: UUID = stage.one(
            "select batch_id from relay.prepare_batch(owner_id => %s, batch_key => %s, max_cost => %s,"
            " max_in_flight => %s)",
            OWNER,
            str(uuid4()),
            max_cost,
            max_in_flight,
        )
    joined = [join_batch(stage, made, stage.prepare(max_cost=each)) for _ in range(members)]
    if seal:
        seal_batch(stage, made)
    return Batch(made, joined)


def join_batch(stage: Stage, batch: UUID, operation: UUID) -> UUID:
    with stage.acting(APPLICATION):
        joined: UUID = stage.one(
            "select operation_id from relay.in_batch(%s, (select o from relay.operation o"
            " where operation_id = %s))",
            batch,
            operation,
        )
    return joined


def seal_batch(stage: Stage, batch: UUID, members: int | None = None) -> None:
    with stage.acting(APPLICATION):
        stage.connection.execute("select relay.seal_batch(%s, %s)", [batch, members])
