"""SIGKILL at every boundary of dispatch, collect, deliver, schedule and review: one POST, one truth."""

import pytest

from consumers.observe.invariants import check_all
from crash_matrix import PARTS, CrashMatrix, Row, cases
from fix_system import System
from fix_versions import measured
from relay import failpoints
from replay import CONSUMERS, replay

ELSEWHERE = {
    "relay": "tests/acceptance/test_relay_restart_loop.py",
    "repair": "tests/integration/test_repair.py",
    "reconcile": "tests/integration/test_restore.py",
    "spool_import": "tests/integration/test_spool_import.py",
    "dlq": "tests/integration/test_dlq.py",
}
"""What isn't the effects' has its own kills."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", PARTS)
def test_a_kill_at_any_boundary_costs_no_second_post_and_no_id(
    system: System, part: str, pytestconfig: pytest.Config
) -> None:
    matrix = CrashMatrix(system)
    matrix.start()

    rows: list[Row] = []
    for row in matrix.run(part):
        measured(pytestconfig, f"killed at {row.failpoint} ({part}, {len(rows) + 1})", str(row))
        rows.append(row)

    assert {row.failpoint for row in rows} == set(cases(part))
    assert not [row for row in rows if row.wrong]
    system.wait_published()
    system.stop(*CONSUMERS)
    assert replay(system, matrix.start_one) == []
    assert system.audit() == []
    system.wait_published()
    broken = [verdict for verdict in check_all(system.snapshot()) if not verdict.holds]
    assert not broken


def test_every_failpoint_has_its_kill() -> None:
    """A failpoint of a new part has to be told where it is killed."""
    covered = {name for part in PARTS for name in cases(part)}
    left = {name for name in failpoints.NAMES if name not in covered}
    assert {name.partition(".")[0] for name in left} == set(ELSEWHERE)


@pytest.mark.slow
def test_a_worker_that_freezes_in_a_transaction_keeps_nobody_else_waiting(system: System) -> None:
    """It holds the lock of its owner's allowance, which every other claim of that owner needs."""
    frozen = system.approve(key="frozen")
    system.start()
    system.kill("dispatch")
    system.start("dispatch", failpoints=f"{failpoints.DISPATCH_CLAIM_UNCOMMITTED}=stop")
    system.processes["dispatch"].wait_until_stopped()
    other = system.approve(key="other")

    system.start("dispatch-2")

    system.wait_for_phase(other, "succeeded")
    system.wait_for_phase(frozen, "succeeded")
    system.kill("dispatch")
    assert system.posts(frozen) == system.posts(other) == 1
