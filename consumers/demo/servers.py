"""The demo's machine: a folder with an embedded PostgreSQL, an embedded broker, the simulator, logins with no
more rights than each part needs, and the environment that each child gets.
"""

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.request import ProxyHandler, Request, build_opener

import msgspec
import psycopg
import yaml
from psycopg import sql

from consumers.demo.application import PROVIDER, SCHEMA
from consumers.demo.processes import Child, Children, clean_environment
from consumers.providers.simulator_world import Plan as SimulatorPlan
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import RelayError, Unavailable, UsageError
from relay.kafka.embedded import EmbeddedKafka

DATABASE: Final = "studio"
PREFIX: Final = "demo"
ROLES: Final = ("relay_app", "relay_replicator", "relay_worker", "relay_operator", "relay_reader")
PROFILE: Final = Path(__file__).resolve().parent / "profiles" / "simulator.yaml"

# Everything is thrown away: a crash of the machine is not among the demo's crashes.
POSTGRES_SETTINGS: Final = {"fsync": "off", "shared_buffers": "64MB", "max_wal_size": "256MB"}
SESSION: Final = {"session.timeout.ms": "3000", "heartbeat.interval.ms": "500"}
"""A killed consumer's partitions go to the next one after this; the default, 45 s, is long to watch."""
CLAIM_LEASE_S: Final = 5
SCHEDULE_EVERY_S: Final = 0.2
GRACE_S: Final = 10
DRIP_S: Final = 0.5
"""Between two bytes of a slow answer: some forty seconds for all of it, against a deadline of three."""
LATE_S: Final = 4.5
"""A late acceptance comes after the client's deadline."""
GIVE_UP_EACH_S: Final = 0.07
"""Added for each operation to what the profile gives a job: two cores observe some thirty a second."""
_START_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Workers:
    """The long-running parts, in the order in which they are started."""

    relay: Child
    dispatch: Child
    collect: Child
    deliver: Child
    schedule: Child

    def all(self) -> tuple[Child, ...]:
        return (self.relay, self.dispatch, self.collect, self.deliver, self.schedule)

    def consumers(self) -> tuple[Child, ...]:
        """All but the relay."""
        return self.all()[1:]


class Servers:
    """`with Servers(keep) as servers:` brings everything up but the workers; leaving it ends everything.

    `folder` is removed at the end unless `keep` named it, `keep_folder` was called, or something failed.
    """

    def __init__(self, keep: Path | None, *, seed: int, operations: int) -> None:
        self._keep = keep
        self._operations = operations
        self._seed = seed
        self._stack = ExitStack()
        self._passwords: dict[str, str] = {}
        self._secret = secrets.token_urlsafe(12)
        self.provider_url = ""

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After a failure the folder is kept, and the error says where; after an interrupt it isn't."""
        if isinstance(error, Exception):
            kept = f"Everything is kept in {self.keep_folder()}."
            if isinstance(error, RelayError):
                error.remedy = f"{error.remedy} {kept}".strip()
            else:
                error.add_note(kept)
        self._stack.close()

    def _open(self) -> None:
        self.folder = self._make_folder()
        for name in ("logs", "outputs", "spool", "profiles"):
            (self.folder / name).mkdir()
        self._write_profile()
        self.kafka = self._stack.enter_context(EmbeddedKafka())
        self.postgres = EmbeddedPostgres(self.folder / "postgres", settings=POSTGRES_SETTINGS)
        self._stack.callback(self.postgres.stop, "fast" if self._keep else "immediate")
        self.postgres.start()
        # Ended before the servers that they talk to: a relay holds back a fast stop of Postgres.
        self.children = self._stack.enter_context(Children(self.folder / "logs"))

    def _make_folder(self) -> Path:
        if self._keep is not None:
            if self._keep.exists() and any(self._keep.iterdir()):
                raise UsageError(
                    f"--keep names {self._keep}, which isn't empty.", remedy="Name a new folder."
                )
            try:
                self._keep.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"--keep names {self._keep}, which can't be made: {error.strerror}.",
                    remedy="Name a folder that this user may make.",
                ) from None
            folder = self._keep.absolute()
        else:
            folder = Path(tempfile.mkdtemp(prefix="relay-demo-"))
            self._stack.callback(self._remove, folder)
        # Postgres runs as another account when the demo is root's, and has to get to its own folder below.
        folder.chmod(0o711)
        return folder

    def _remove(self, folder: Path) -> None:
        if self._keep is None:
            shutil.rmtree(folder, ignore_errors=True)

    def _write_profile(self) -> None:
        """The demo's profile, with time enough for this number of jobs."""
        profile = yaml.safe_load(PROFILE.read_text(encoding="utf-8"))
        profile["give_up_s"] += GIVE_UP_EACH_S * self._operations
        text = yaml.safe_dump(profile, sort_keys=False)
        (self.folder / "profiles" / PROFILE.name).write_text(text, encoding="utf-8")

    def keep_folder(self) -> Path:
        """Keep the folder after all: there is something to look at."""
        self._keep = self.folder
        return self.folder

    @property
    def brokers(self) -> dict[str, str]:
        """librdkafka's properties that lead to the embedded broker."""
        return {"bootstrap.servers": self.kafka.bootstrap}

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    # The database -------------------------------------------------------------------------------------------

    def prepare_database(self) -> None:
        """The database, `relay init`, the application's own table, and a login for each role."""
        with psycopg.connect(self.postgres.superuser_url, autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        self._init()
        with psycopg.connect(self.postgres.url(DATABASE), autocommit=True) as connection:
            connection.execute(SCHEMA)
            for role in ROLES:
                self._passwords[role] = secrets.token_urlsafe(18)
                attributes = "login replication" if role == "relay_replicator" else "login"
                connection.execute(
                    sql.SQL("create role {} {} password {} in role {}").format(
                        sql.Identifier(_login(role)),
                        sql.SQL(attributes),
                        sql.Literal(self._passwords[role]),
                        sql.Identifier(role),
                    )
                )

    def _init(self) -> None:
        """`relay init`, as an operator would call it: with a login that may make roles and a slot."""
        log = self.folder / "logs" / "init.log"
        environment = self._environment(self.postgres.url(DATABASE))
        with log.open("wb") as output:
            done = subprocess.run(
                [sys.executable, "-m", "relay", "init"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != 0:
            raise RelayError(f"relay init failed:\n{log.read_text(encoding='utf-8', errors='replace')}")

    def connect(self, role: str) -> psycopg.Connection[Any]:
        """In autocommit, as the login that is a member of `role` alone."""
        return psycopg.connect(self._url(role), autocommit=True, application_name=f"relay demo {role}")

    def _url(self, role: str) -> str:
        return self.postgres.url(DATABASE, user=_login(role), password=self._passwords[role])

    # The provider -------------------------------------------------------------------------------------------

    def start_provider(self) -> Child:
        """Start the simulator and wait until it listens. Raises Unavailable when it doesn't."""
        args = ["simulate-provider", "--seed", str(self._seed), "--secret", self._secret]
        child = self.children.add("provider", args, clean_environment())
        child.start()
        deadline = time.monotonic() + _START_S
        while not (said := _listening(child.log)):
            child.require_running()
            if time.monotonic() > deadline:
                raise Unavailable(f"The simulator didn't start within {_START_S:g} s:\n{child.tail()}")
            time.sleep(_LOOK_AGAIN_S)
        self.provider_url = said
        return child

    def plan_faults(self, plan: SimulatorPlan) -> None:
        """Tell the simulator what goes wrong. Raises URLError when it doesn't take it."""
        opener = build_opener(ProxyHandler({}))
        request = Request(f"{self.provider_url}/_faults", data=msgspec.json.encode(plan), method="POST")
        with opener.open(request, timeout=_START_S) as answer:
            answer.read()

    # The workers --------------------------------------------------------------------------------------------

    def make_workers(self) -> Workers:
        """Not started yet."""
        add, worker = self.children.add, self._environment(self._url("relay_worker"))
        # Only members of groups have a session; a producer would warn of settings that aren't its own.
        member = worker | {_variable(name): value for name, value in SESSION.items()}
        return Workers(
            relay=add("relay", ["run"], self._environment(self._url("relay_replicator"))),
            dispatch=add("dispatch", ["consume", "dispatch"], member),
            collect=add("collect", ["consume", "collect"], member),
            deliver=add("deliver", ["consume", "deliver"], member),
            schedule=add("schedule", ["schedule"], worker),
        )

    def _environment(self, database_url: str) -> dict[str, str]:
        return clean_environment() | self.settings(database_url)

    def settings(self, database_url: str) -> dict[str, str]:
        """What a command needs that shall talk to these servers."""
        return {
            "RELAY_DATABASE_URL": database_url,
            "RELAY_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "RELAY_TOPIC_PREFIX": PREFIX,
            # The embedded broker shows uncommitted records to everybody: exactly once can't be shown there.
            "RELAY_DELIVERY": "at_least_once",
            "RELAY_PROFILES": str(self.folder / "profiles"),
            f"RELAY_PROVIDER_{PROVIDER.upper()}_URL": self.provider_url or "http://127.0.0.1",
            f"RELAY_PROVIDER_{PROVIDER.upper()}_SECRET": self._secret,
            "RELAY_OUTPUTS_URL": self.outputs.as_uri(),
            "RELAY_SPOOL": str(self.folder / "spool"),
            "RELAY_CLAIM_LEASE_S": str(CLAIM_LEASE_S),
            "RELAY_SCHEDULE_EVERY_S": str(SCHEDULE_EVERY_S),
            "RELAY_GRACE_S": str(GRACE_S),
            "RELAY_LOG_FORMAT": "json",
        }


def _variable(kafka_property: str) -> str:
    return "RELAY_KAFKA_" + kafka_property.upper().replace(".", "_")


def _login(role: str) -> str:
    return role.replace("relay_", "demo_")


def _listening(log: Path) -> str:
    """The URL that the simulator says it listens on; empty until then."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("listening on "):
            return line.removeprefix("listening on ").strip()
    return ""
