"""The relay as it is deployed: `relay init`, then `relay run`, its settings left at their defaults."""

import sys
from typing import Literal

from bench.child import Child, run
from bench.shape import SCHEMAS
from bench.source import PUBLICATION
from bench.subjects.subject import Run

INIT_TIMEOUT_S = 60.0

_RELAY = (sys.executable, "-m", "relay")


class RelayRun:
    """One `relay run`."""

    def __init__(self, delivery: Literal["exactly_once", "at_least_once"]) -> None:
        self.delivery = delivery
        self.name = "relay, " + delivery.replace("_", " ")

    def prepare(self, run_: Run) -> None:
        run([*_RELAY, "init"], self._environment(run_), run_.folder / "relay-init.log", INIT_TIMEOUT_S)

    def start(self, run_: Run) -> Child:
        return Child([*_RELAY, "run"], self._environment(run_), run_.folder / "relay-run.log")

    def _environment(self, run_: Run) -> dict[str, str]:
        shape = run_.source.shape
        return {
            "RELAY_DATABASE_URL": run_.source.url,
            "RELAY_KAFKA_BOOTSTRAP": run_.bootstrap,
            "RELAY_TOPIC_PREFIX": run_.name,
            "RELAY_TOPIC": run_.topic,
            "RELAY_SLOT": run_.name,
            "RELAY_PUBLICATION": PUBLICATION,
            "RELAY_OUTBOX_TABLE": shape.table,
            "RELAY_OUTBOX_COLUMNS": shape.columns,
            "RELAY_SCHEMAS": str(SCHEMAS),
            "RELAY_DELIVERY": self.delivery,
            "RELAY_LOG_FORMAT": "json",
        }
