"""What the database lets a declared replay do, and no worker can do otherwise."""

from uuid import UUID

import psycopg
import pytest

from fix_operations import WORKER, Stage
from fix_replay import declare, repeat, replayed


def refusal(stage: Stage, operation: UUID, to_phase: str, reason: str = "test") -> str:
    with pytest.raises(psycopg.Error) as refused, stage.connection.transaction():
        stage.move(operation, to_phase, reason)
    return str(refused.value)


def test_a_replay_has_the_key_and_the_bytes_of_the_request_that_it_repeats(stage: Stage) -> None:
    for changed in ({"key": "another"}, {"sha256": "another"}):
        operation = replayed(stage, "claimed")
        token = stage.one("select claim_token from relay.operation where operation_id = %s", operation)
        with stage.acting(WORKER):
            repeat(stage, operation, token, **changed)
            stage.say("submit", attempt=token)
            assert "may have reached the provider" in refusal(stage, operation, "submitting")


def test_a_replay_is_sent_only_while_its_provider_keeps_the_key(stage: Stage) -> None:
    operation = replayed(stage, "claimed")
    token = stage.one("select claim_token from relay.operation where operation_id = %s", operation)
    declare(stage, operation, retention_s=76)
    stage.connection.execute("alter table relay.attempt disable trigger b_guard")
    stage.connection.execute(
        "update relay.attempt set first_sent_at = relay.now() - interval '1 second' where operation_id = %s",
        [operation],
    )
    stage.connection.execute("alter table relay.attempt enable always trigger b_guard")
    with stage.acting(WORKER):
        repeat(stage, operation, token)
        stage.say("submit", attempt=token)
        assert "may have reached the provider" in refusal(stage, operation, "submitting")


@pytest.mark.parametrize(
    ("phase", "to_phase", "cause"),
    [
        ("prepared", "held", "hold"),
        ("prepared", "cancelled", "cancel"),
        ("claimed", "held", "hold"),
        ("claimed", "cancelled", "cancel"),
        ("submitting", "rejected", "rule"),
        ("submitting", "held", "refused"),
    ],
)
def test_no_later_step_ends_an_operation_of_which_an_earlier_request_is_unknown(
    stage: Stage, phase: str, to_phase: str, cause: str
) -> None:
    operation = replayed(stage, phase)
    token = stage.one("select claim_token from relay.operation where operation_id = %s", operation)
    stage.connection.execute(
        "update relay.operation set cancel_requested = true where operation_id = %s", [operation]
    )
    with stage.acting(WORKER):
        if phase == "submitting":
            stage.finish(token, "refused", charged=False)
        stage.say(cause, attempt=token)
        assert "may have made a job" in refusal(stage, operation, to_phase, "configuration")


def test_a_worker_can_not_declare_anything(stage: Stage) -> None:
    with (
        stage.acting(WORKER),
        pytest.raises(psycopg.errors.InsufficientPrivilege),
        stage.connection.transaction(),
    ):
        stage.connection.execute("update relay.provider_profile set idempotency = '{}'")
