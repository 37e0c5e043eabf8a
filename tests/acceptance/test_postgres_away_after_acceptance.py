"""Postgres goes away between the provider's answer and its commit: real processes, real sockets."""

import signal
from collections.abc import Callable

import psycopg
import pytest

from fix_proxy import TcpProxy
from fix_system import System
from relay import failpoints

AWAY = "the answer is not written yet"


@pytest.mark.slow
def test_an_answer_outlives_the_database_and_the_worker(
    system: System, tcp_proxy: Callable[[str, int], TcpProxy]
) -> None:
    """The write alone is tried again, and nothing is claimed meanwhile; of a worker killed in that time the
    next one reads the spool. One POST each."""
    server = system.database.server
    proxy = tcp_proxy(server.host, server.port)
    login = system.database.url_as("relay_worker")
    through = psycopg.conninfo.make_conninfo(login, host=proxy.host, port=str(proxy.port))
    stopping = f"{failpoints.DISPATCH_ANSWER_SPOOLED}=stop@1"
    system.start("run", "schedule")

    # It comes back while the worker lives.
    system.start("dispatch", failpoints=stopping, RELAY_DATABASE_URL=through)
    first = system.approve(key="frame-1")
    dispatcher = system.processes["dispatch"]
    dispatcher.wait_until_stopped()
    second = system.approve(key="frame-2")
    proxy.cut()
    dispatcher.signal(signal.SIGCONT)
    dispatcher.wait_for(AWAY)
    assert system.phase(first) in ("submitting", "uncertain")
    assert (system.phase(second), system.posts(second)) == ("prepared", 0)
    proxy.resume()
    system.wait_for_phase(first, "accepted")
    system.wait_for_phase(second, "accepted")
    system.stop("dispatch")

    # It comes back, and the worker was killed.
    system.start("dispatch", failpoints=stopping, RELAY_DATABASE_URL=through)
    third = system.approve(key="frame-3")
    dispatcher = system.processes.pop("dispatch")
    dispatcher.wait_until_stopped()
    proxy.cut()
    dispatcher.signal(signal.SIGCONT)
    dispatcher.wait_for(AWAY)
    dispatcher.kill()
    fourth = system.approve(key="frame-4")
    assert system.phase(third) in ("submitting", "uncertain")
    proxy.resume()
    system.start("dispatch", RELAY_DATABASE_URL=through)
    system.wait_for_phase(third, "accepted")
    system.wait_for_phase(fourth, "accepted")

    assert [system.posts(one) for one in (first, second, third, fourth)] == [1, 1, 1, 1]
    made = {job["job_id"] for job in system.truth()["jobs"]}
    known = {row[0] for row in system.owner.execute("select job_id from relay.operation").fetchall()}
    assert known == made
