"""Health is progress: idle is healthy, waiting is not for ever, and a standby is fine."""

import pytest

from relay.health import Health, State

AFTER_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    return Health(AFTER_S, clock)


def turn(health: Health, clock: Clock, seconds: float, *, holds: str = "", streamed_to: int = 1) -> None:
    """`seconds` pass, and the relay's thread comes by each of them."""
    for _ in range(int(seconds)):
        clock.now += 1
        health.turned(holds=holds, streamed_to=streamed_to)


def test_an_idle_relay_with_everything_confirmed_stays_healthy(health: Health, clock: Clock) -> None:
    health.active(7)
    turn(health, clock, 10 * AFTER_S)
    report = health.report()
    assert (report.healthy, report.ready, report.behind_s) == (True, True, 0)


def test_what_is_held_without_progress_is_unhealthy_and_says_why(health: Health, clock: Clock) -> None:
    health.active(7)
    turn(health, clock, AFTER_S, holds="Kafka hasn't acknowledged it")
    assert health.report().healthy
    turn(health, clock, 2, holds="Kafka hasn't acknowledged it")
    report = health.report()
    assert not report.healthy
    assert not report.ready
    assert report.reason == "No progress for 62.0 s: Kafka hasn't acknowledged it."


def test_progress_is_what_kafka_took_not_what_was_read(health: Health, clock: Clock) -> None:
    health.active(7)
    for read_to in range(2, 10):
        turn(health, clock, 10, holds="held", streamed_to=read_to)
    assert not health.report().healthy
    health.progressed(8)
    turn(health, clock, 10, holds="held", streamed_to=10)
    assert health.report().healthy


def test_a_relay_that_is_always_busy_and_moves_is_healthy(health: Health, clock: Clock) -> None:
    health.active(7)
    for _ in range(20):
        turn(health, clock, 10, holds="held")
        health.progressed(8)
        assert health.report().healthy


def test_a_row_that_postgres_does_not_send_is_unhealthy_and_names_the_standby(
    health: Health, clock: Clock
) -> None:
    health.active(7)
    health.saw_table(waiting=True, stalled_by="synchronized_standby_slots names b (not connected)")
    turn(health, clock, AFTER_S + 2)
    report = health.report()
    assert not report.healthy
    assert "synchronized_standby_slots names b" in report.reason
    health.saw_table(waiting=False)
    turn(health, clock, 1)
    assert health.report().healthy


def test_wal_of_others_that_goes_by_is_progress_while_nothing_is_held(health: Health, clock: Clock) -> None:
    health.active(7)
    health.saw_table(waiting=True)
    for read_to in range(2, 20):
        turn(health, clock, 10, streamed_to=read_to)
        assert health.report().healthy


def test_sessions_that_fail_one_after_the_other_are_no_progress(health: Health, clock: Clock) -> None:
    for _ in range(10):
        health.starting("it connects to Postgres")
        clock.now += 5
        health.active(7)
        turn(health, clock, 5, holds="held")
        health.broken("Kafka failed the transaction.")
    report = health.report()
    assert not report.healthy
    assert "Kafka failed the transaction." in report.reason


def test_a_relay_that_never_gets_to_publish_is_unhealthy(health: Health, clock: Clock) -> None:
    assert health.report().healthy
    assert not health.report().ready
    for _ in range(int(AFTER_S) + 1):
        clock.now += 1
        health.starting("it opens its topics and its producer in Kafka")
    report = health.report()
    assert not report.healthy
    assert "its producer in Kafka" in report.reason


def test_a_standby_is_healthy_and_ready_however_long_it_waits(health: Health, clock: Clock) -> None:
    health.standby("another relay has the slot.")
    for _ in range(1000):
        clock.now += 1
        health.beat()
    health.saw_table(waiting=True)
    report = health.report()
    assert (report.healthy, report.ready, report.state) == (True, True, State.STANDBY)


@pytest.mark.parametrize("state", [State.ACTIVE, State.STANDBY])
def test_a_thread_that_hangs_is_unhealthy_whatever_it_was(state: State, health: Health, clock: Clock) -> None:
    if state is State.ACTIVE:
        health.active(7)
    else:
        health.standby("another relay has the slot.")
    clock.now += AFTER_S + 1
    report = health.report()
    assert not report.healthy
    assert not report.ready
    assert "hangs" in report.reason
