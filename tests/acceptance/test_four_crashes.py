"""The article's four crashes: real processes, SIGKILL at a named failpoint, real Postgres, real Kafka."""

import psycopg
import pytest

from fix_system import OWNER, System
from relay import failpoints


def test_a_crash_before_commit_leaves_no_partial_intent(system: System) -> None:
    """The application's session dies before its commit: neither its own row nor ours stays."""
    system.start()
    system.owner.execute("create table public.frame_revision (revision int primary key, approved boolean)")
    with psycopg.connect(system.database.url) as application:
        application.execute("insert into public.frame_revision values (1, true)")
        lost = system.approve(application)
        backend = application.info.backend_pid
        system.owner.execute("select pg_terminate_backend(%s, 10000)", [backend])
        with pytest.raises(psycopg.OperationalError):
            application.commit()

    kept = system.approve(key="frame-2")
    system.wait_for_phase(kept, "succeeded")

    assert system.one("select count(*) from public.frame_revision") == 0
    assert system.one("select count(*) from relay.operation where operation_id = %s", lost) == 0
    assert system.one("select count(*) from relay.outbox where operation_id = %s", lost) == 0
    assert system.posts(lost) == 0


def test_a_crash_after_commit_and_before_dispatch_is_still_found(system: System) -> None:
    operation = system.approve()
    system.start("run", "collect", "deliver", "schedule")
    system.start("dispatch", failpoints=f"{failpoints.DISPATCH_BEFORE_CLAIM}=kill")
    system.wait_for_kill("dispatch", failpoints.DISPATCH_BEFORE_CLAIM)
    assert system.phase(operation) == "prepared"
    assert system.posts(operation) == 0

    system.start("dispatch")

    _wait_until_delivered(system)
    assert system.posts(operation) == 1


def test_a_crash_between_claim_and_first_byte_is_prepared_again_and_posted_once(system: System) -> None:
    operation = system.approve()
    system.start("run", "collect", "deliver", "schedule")
    system.start("dispatch", failpoints=f"{failpoints.DISPATCH_CLAIMED}=kill")
    system.wait_for_kill("dispatch", failpoints.DISPATCH_CLAIMED)
    assert system.phase(operation) == "claimed"

    system.start("dispatch")

    _wait_until_delivered(system)
    assert system.posts(operation) == 1
    causes = system.owner.execute(
        "select cause from relay.journal where operation_id = %s", [operation]
    ).fetchall()
    assert ("lease_expired",) in causes


@pytest.mark.parametrize(
    "failpoint",
    [
        failpoints.DISPATCH_HOOK_COMMITTED,
        failpoints.DISPATCH_HOOK_SPOOLED,
        failpoints.DISPATCH_ANSWER_RECEIVED,
    ],
)
def test_a_crash_after_submitting_and_before_the_id_is_saved_is_uncertain_with_at_most_one_post(
    system: System, failpoint: str
) -> None:
    """Whether the provider accepted can't be known here: it is said, kept, and never tried again."""
    operation = system.approve()
    system.start("run", "collect", "deliver", "schedule")
    system.start("dispatch", failpoints=f"{failpoint}=kill")
    system.wait_for_kill("dispatch", failpoint)
    expected = 1 if failpoint == failpoints.DISPATCH_ANSWER_RECEIVED else 0
    assert system.posts(operation) == expected

    system.start("dispatch")

    system.wait_for_phase(operation, "uncertain")
    # A later operation goes its whole way past it, and the event is handed over again from offset 0.
    later = system.approve(key="frame-2")
    system.wait_for_phase(later, "succeeded")
    system.stop("dispatch")
    system.forget_offsets("dispatch")
    system.start("dispatch")
    last = system.approve(key="frame-3")
    system.wait_for_phase(last, "succeeded")
    assert system.phase(operation) == "uncertain"
    assert system.posts(operation) == expected
    assert system.posts(later) == 1
    reviews = system.owner.execute("select kind from relay.review where state = 'open'").fetchall()
    assert reviews == [("uncertain_submission",)]
    assert system.one("select reserved from relay.allowance where owner_id = %s", OWNER) == 5


@pytest.mark.parametrize("failpoint", [failpoints.DISPATCH_ANSWER_SPOOLED])
def test_a_crash_after_the_answer_is_spooled_loses_no_id(system: System, failpoint: str) -> None:
    operation = system.approve()
    system.start("run", "collect", "deliver", "schedule")
    system.start("dispatch", failpoints=f"{failpoint}=kill")
    system.wait_for_kill("dispatch", failpoint)
    assert system.phase(operation) == "submitting"

    system.start("dispatch")

    _wait_until_delivered(system)
    assert system.posts(operation) == 1


@pytest.mark.parametrize("failpoint", [failpoints.DISPATCH_ANSWER_APPLIED, failpoints.CONSUMER_HANDLED])
def test_a_crash_after_the_id_is_saved_resumes_observation_with_one_post(
    system: System, failpoint: str
) -> None:
    operation = system.approve()
    system.start("run", "schedule")
    system.start("dispatch", failpoints=f"{failpoint}=kill")
    system.wait_for_kill("dispatch", failpoint)
    assert system.phase(operation) == "accepted"
    assert system.one("select job_id is not null from relay.operation where operation_id = %s", operation)

    system.start("dispatch", "collect", "deliver")

    _wait_until_delivered(system)
    assert system.posts(operation) == 1


def _wait_until_delivered(system: System) -> None:
    def delivered() -> bool:
        return bool(
            system.one(
                "select count(*) = 1 from relay.operation where kind = 'delivery' and phase = 'stored'"
            )
        )

    system.wait_until(delivered, "the output is delivered")
    stored = {path.name for path in system.outputs.rglob("*") if path.is_file()}
    assert len(stored) == system.one("select count(*) from relay.output where stored_at is not null")
