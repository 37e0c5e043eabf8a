"""A chaos run: the whole system, and somebody who breaks it everywhere, at random, from a printed seed.

Whatever ends is started again, as an orchestrator would; what came of it is judged when all is quiet.
"""

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Final

import httpx
import msgspec

from apache_kafka import ApacheKafka
from chaos_people import Application, Jobs, Operators
from consumers.operations.progress import read_progress
from consumers.providers.simulator_world import Fault, Plan
from fix_kafka import Kafka
from fix_postgres import Database
from fix_process import RunProcess
from fix_proxy import TcpProxy
from fix_system import System
from fix_waiting import eventually
from relay import failpoints
from replay import CONSUMERS

PROCESSES: Final = ("run", "schedule", "dispatch", "dispatch-2", "collect", "collect-2", "deliver")
PACE_S: Final = (0.05, 0.8)
"""Between two blows."""
SETTLES_S: Final = 300.0
FAULT: Final = 0.03
"""How often each fault of the provider strikes."""
MAY_END: Final = frozenset({-9, 0, 1, 19})
"""Exit statuses that the breaking explains: killed, told to, a server away at the start, fenced."""
_FAILPOINTS: Final = {
    "run": [one for one in failpoints.NAMES_IN_ORDER if one.startswith("relay.") and "republish" not in one]
}


class ChaosSystem(System):
    """Its processes reach Postgres and the provider through proxies; we don't. Any of them may end."""

    def __init__(
        self, database: Database, kafka: Kafka, prefix: str, folder: Path, run_process: RunProcess
    ) -> None:
        super().__init__(database, kafka, prefix, folder, run_process)
        self.to_database = TcpProxy((database.server.host, database.server.port))
        host, _, port = self.simulator_url.removeprefix("http://").rpartition(":")
        self.to_provider = TcpProxy((host, int(port)))
        self.ended: Counter[int] = Counter()
        """Exit statuses of processes that ended by themselves, or by a failpoint."""

    def environment(self, login: str | None = None) -> dict[str, str]:
        found = super().environment(login)
        if login is None:
            return found
        port, proxied = f":{self.database.server.port}/", f":{self.to_database.port}/"
        return found | {
            "RELAY_DATABASE_URL": found["RELAY_DATABASE_URL"].replace(port, proxied),
            "RELAY_PROVIDER_SIMULATOR_URL": f"http://127.0.0.1:{self.to_provider.port}",
            "RELAY_KAFKA_TRANSACTION_TIMEOUT_MS": "10000",
            "RELAY_SENDER_TIMEOUT_S": "5",
        }

    def look_after_processes(self) -> None:
        for name, process in list(self.processes.items()):
            if not process.running:
                status = process.wait()
                self.ended[status] += 1
                assert status in MAY_END, f"{name} ended with {status}:\n{process.output()[-4000:]}"
                self.start(name)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.to_database.close()
        self.to_provider.close()
        self.owner.close()


class Chaos:
    """Everything that happens follows from `seed` and from how fast the machine is."""

    def __init__(self, system: ChaosSystem, broker: ApacheKafka, seed: int) -> None:
        self.system = system
        self.broker = broker
        self.seed = seed
        self.draw = random.Random(seed)
        self.application = Application(system, self.draw)
        self.operators = Operators(system, self.draw)
        self.blows: Counter[str] = Counter()
        self._frozen: list[str] = []
        self._never = threading.Event()
        self._blows: dict[Callable[[], None], int] = {
            self._kill: 8,
            self._arm: 8,
            self._freeze: 3,
            self._cut_database: 3,
            self._hold_database: 2,
            self._cut_provider: 4,
            self._hold_provider: 3,
            self._jump: 4,
            self._forget: 1,
            self._kill_broker: 1,
            self._kill_postgres: 1,
        }

    def run(self, minutes: float) -> None:
        """Break it for so long, then heal it and wait until nothing moves any more."""
        faults = dict.fromkeys(Fault, FAULT)
        plan = Plan(faults=faults, polls=(1, 3), late_s=4, drip_s=1.5)
        answer = httpx.post(
            f"{self.system.simulator_url}/_faults", content=msgspec.json.encode(plan), trust_env=False
        )
        assert answer.status_code == 200, answer.text
        self.operators.money()
        self.system.move_clock("0")
        self.system.start(*PROCESSES)
        ends = time.monotonic() + minutes * 60
        while time.monotonic() < ends:
            self._people()
            (blow,) = self.draw.choices(list(self._blows), list(self._blows.values()))
            blow()
            self.blows[blow.__name__.strip("_").replace("_", " ")] += 1
            self._never.wait(self.draw.uniform(*PACE_S))
            self.system.look_after_processes()
        self._heal()
        self._settle()

    # People --------------------------------------------------------------------------------------------

    def _people(self) -> None:
        self.application.approve(self.draw.randint(1, 4))
        dice = self.draw.random()
        if dice < 0.1:
            self.operators.money()
        elif dice < 0.4:
            self.operators.decide(self._jobs())
        elif dice < 0.45:
            self.application.cancel_one()

    def _jobs(self) -> Jobs:
        jobs: dict[str, dict[str, Decimal]] = {}
        for job in self.system.truth()["jobs"]:
            jobs.setdefault(job["reference"], {})[job["job_id"]] = Decimal(job["charged"])
        return jobs

    # Blows ---------------------------------------------------------------------------------------------

    def _any(self) -> str:
        return self.draw.choice(sorted(self.system.processes))

    def _kill(self) -> None:
        name = self._any()
        self.system.kill(name)
        self._thawed(name)
        self.system.start(name)

    def _arm(self) -> None:
        """It dies, or stands still, at one of its own boundaries, at one of its next passages."""
        name = self._any()
        kind = name.partition("-")[0]
        own = _FAILPOINTS.get(kind) or [
            one for one in failpoints.NAMES_IN_ORDER if one.startswith((f"{kind}.", "consumer."))
        ]
        armed = f"{self.draw.choice(own)}=kill@{self.draw.randint(1, 4)}"
        self.system.kill(name)
        self._thawed(name)
        self.system.start(name, failpoints=armed)

    def _freeze(self) -> None:
        """SIGSTOP to one; the one before it goes on."""
        while self._frozen:
            name = self._frozen.pop()
            self.system.processes[name].signal(signal.SIGCONT)
        name = self._any()
        self.system.processes[name].signal(signal.SIGSTOP)
        self._frozen.append(name)

    def _thawed(self, name: str) -> None:
        if name in self._frozen:
            self._frozen.remove(name)

    def _cut_database(self) -> None:
        self.system.to_database.cut()
        self.system.to_database.resume()

    def _hold_database(self) -> None:
        self._hold(self.system.to_database)

    def _cut_provider(self) -> None:
        if self.draw.random() < 0.5:
            self.system.to_provider.cut_after(self.draw.randint(1, 400))
        else:
            self.system.to_provider.cut()
            self.system.to_provider.resume()

    def _hold_provider(self) -> None:
        self._hold(self.system.to_provider)

    def _hold(self, proxy: TcpProxy) -> None:
        """Nothing goes through, or it is swallowed, for as long as it takes until some more is approved."""
        self.draw.choice([proxy.pause, proxy.blackhole])(self.draw.choice(["to_server", "to_client", "both"]))
        self.application.approve(2)
        self._never.wait(self.draw.uniform(*PACE_S))
        proxy.resume()

    def _jump(self) -> None:
        self.system.move_clock(f"{self.draw.randint(1, 900)} seconds")

    def _forget(self) -> None:
        """A group begins again at offset 0, with all its members gone."""
        kind = self.draw.choice(sorted(CONSUMERS))
        members = [name for name in self.system.processes if name.partition("-")[0] == kind]
        self.system.kill(*members)
        for name in members:
            self._thawed(name)
        self.system.forget_offsets(kind)
        self.system.start(*members)

    def _kill_broker(self) -> None:
        self.broker.kill()
        self.broker.start()

    def _kill_postgres(self) -> None:
        server = self.system.database.server
        server.stop("immediate")
        server.start()
        self.system.owner.close()
        self.system.owner = self.system.database.connect()

    # The end -------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        for name in self._frozen:
            self.system.processes[name].signal(signal.SIGCONT)
        self._frozen.clear()
        self.system.to_database.resume()
        self.system.to_provider.resume()
        # What is armed still would fall later: whoever runs now is told to end, and the next one isn't armed.
        for name in sorted(self.system.processes):
            self.system.kill(name)
            self.system.start(name)

    def _settle(self) -> None:
        """Until every operation is final or waits for a person. Time passes faster than it does."""
        looked = 0

        def quiet() -> bool:
            nonlocal looked
            looked += 1
            self.operators.money()
            self.operators.decide(self._jobs(), at_most=50)
            if looked % 20 == 0:
                self.system.move_clock("5 minutes")
            progress = read_progress(self.system.owner)
            held = self.system.one(
                "select count(*) from relay.operation where phase = 'held' and open_reviews = 0"
            )
            return not progress.busy and held == 0

        def seen() -> bool:
            self.system.look_after_processes()
            return quiet()

        eventually(seen, "nothing moves any more", SETTLES_S)
        self.system.wait_published()
