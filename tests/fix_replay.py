"""Declared replays for tests of the database's guards: what the profile would have declared, and an operation
whose unknown request may be sent again.
"""

from uuid import UUID

from fix_operations import WORKER, Stage


def declare(stage: Stage, operation: UUID, *, retention_s: int = 3600) -> None:
    """As if the profile had declared it from the start, and the operation's requests had had a key."""
    run = stage.connection.execute
    run("alter table relay.provider_profile disable trigger a_forbidden")
    run(
        "update relay.provider_profile p set idempotency = jsonb_build_object('retention_s', %s::integer,"
        " 'request_s', 75, 'min_s', 5, 'max_s', 60, 'factor', 2) from relay.operation o"
        " where o.operation_id = %s and p.provider = o.provider and p.digest = o.profile_digest",
        [retention_s, operation],
    )
    run("alter table relay.provider_profile enable always trigger a_forbidden")
    run("alter table relay.attempt disable trigger b_guard")
    run(
        "update relay.attempt set idempotency_key = operation_id::text, request_sha256 = 'same',"
        " first_sent_at = relay.now() where operation_id = %s",
        [operation],
    )
    run("alter table relay.attempt enable always trigger b_guard")


def replayed(stage: Stage, phase: str) -> UUID:
    """An operation that was uncertain and is prepared, claimed or submitting once more."""
    operation = stage.in_phase("generation", "uncertain")
    declare(stage, operation)
    with stage.acting(WORKER):
        stage.say("replay")
        assert stage.move(operation, "prepared", "replay") == 1
    if phase == "prepared":
        return operation
    token = stage.claim(operation, reserve=False)
    if phase == "submitting":
        with stage.acting(WORKER):
            repeat(stage, operation, token)
            stage.say("submit", attempt=token)
            assert stage.move(operation, "submitting", "sending") == 1
    return operation


def repeat(
    stage: Stage, operation: UUID, token: UUID, *, key: str | None = None, sha256: str = "same"
) -> None:
    """The attempt of a replay, as its dispatcher writes it before the first byte."""
    stage.connection.execute(
        "insert into relay.attempt (attempt_id, operation_id, action, dispatch_no, worker, first_sent_at,"
        " idempotency_key, request_sha256, late_delivery_until)"
        " select %s, operation_id, 'submit', dispatch_no,"
        " 'w', relay.now(), %s, %s, relay.now() + '15 minutes' from relay.operation where operation_id = %s",
        [token, key or str(operation), sha256, operation],
    )
