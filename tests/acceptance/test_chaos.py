"""The whole system under random crashes, cuts and faults: every invariant holds when it is quiet again.

`make chaos MINUTES=5` runs this alone, for so long; CHAOS_SEED repeats a run's decisions.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from apache_kafka import ApacheKafka, KafkaMissing
from chaos import Chaos, ChaosSystem
from consumers.observe.invariants import check_all
from fix_kafka import Kafka
from fix_postgres import clone, make_template
from fix_process import RunProcess
from fix_versions import measured
from relay.embedded_postgres import EmbeddedPostgres
from replay import CONSUMERS, replay

MINUTES = float(os.environ.get("CHAOS_MINUTES", "0.6"))
# Among the other tests always the same decisions; a run of its own has new ones, and prints their seed.
_ANY = random.SystemRandom().randint(1, 10**6) if "CHAOS_MINUTES" in os.environ else 485281
SEED = int(os.environ.get("CHAOS_SEED", "0")) or _ANY


@pytest.fixture
def chaos(
    own_postgres: EmbeddedPostgres, tmp_path: Path, topic_prefix: str, run_process: RunProcess
) -> Iterator[Chaos]:
    """Servers of its own, since it kills them."""
    try:
        broker = ApacheKafka(tmp_path / "kafka")
        broker.start()
    except KafkaMissing as missing:
        pytest.skip(f"this needs a real Kafka: {missing}")
    database = clone(own_postgres, make_template(own_postgres))
    kafka = Kafka(broker.bootstrap, broker.version, real=True)
    system = ChaosSystem(database, kafka, topic_prefix, tmp_path, run_process)
    try:
        system.init()
        yield Chaos(system, broker, SEED)
    finally:
        system.close()
        broker.stop()


@pytest.mark.slow
@pytest.mark.timeout(600 + MINUTES * 120)
def test_under_random_crashes_and_faults_every_invariant_holds(
    chaos: Chaos, pytestconfig: pytest.Config
) -> None:
    system = chaos.system
    chaos.run(MINUTES)

    for name in [name for name in system.processes if name.partition("-")[0] in CONSUMERS]:
        system.kill(name)
    changed = replay(system, system.start)
    system.wait_published()
    findings = system.audit()
    undone = frozenset(chaos.application.rolled_back)
    verdicts = check_all(replace(system.snapshot(), rolled_back=undone))

    truth = system.truth()
    said = {
        f"seed {chaos.seed}, {MINUTES:g} minutes": dict(chaos.blows),
        "ended": dict(system.ended),
        "approved": f"{len(chaos.application.approved)}, undone {len(chaos.application.rolled_back)}",
        "provider": f"{len(truth['posts'])} POSTs, {len(truth['jobs'])} jobs, faults {truth['faults']}",
        "operations": dict(
            system.owner.execute(
                "select kind || ' ' || phase, count(*) from relay.operation group by 1 order by 1"
            ).fetchall()
        ),
        "decided": dict(chaos.operators.decided),
        "decisions refused": dict(chaos.operators.refused),
        "the audit found": len(findings),
        "a replay from offset 0 changed": len(changed),
    }
    for what, seen in said.items():
        measured(pytestconfig, f"chaos: {what}", str(seen))
    for verdict in verdicts:
        broken = f"{len(verdict.offending)} of {verdict.checked} broken"
        measured(pytestconfig, f"chaos: invariant {verdict.number}", f"{broken}: {verdict.says}")

    assert [verdict for verdict in verdicts if not verdict.holds] == []
    assert findings == []
    assert changed == []
    assert chaos.blows
