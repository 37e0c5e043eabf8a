"""A real Apache Kafka for tests and benchmark: one KRaft node from Maven Central's jars, on free ports.

It must never need more than Java and Maven, and it never touches a broker that it did not start.
As a program it starts one and prints its address: ``python tests/kafka/apache_kafka.py FOLDER``.
"""

import base64
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

HERE: Final = Path(__file__).resolve().parent
POM: Final = HERE / "pom.xml"
CACHE: Final = HERE.parents[1] / ".cache" / "kafka"
"""Where the jars are kept, outside version control; TEST_KAFKA_CACHE names another folder."""

# One node holds every replica. Small internal topics and a small cleaner make it start fast and stay light;
# the short limits let a test see a dead consumer or an abandoned transaction within seconds.
SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.index.size.max.bytes": "1048576",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

# C1 alone compiles sooner, which is what a broker that lives for a test run needs.
JVM: Final = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

DOWNLOAD_TIMEOUT_S: Final = 600.0
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.1
_LOG_TAIL_LINES: Final = 15


class KafkaMissing(Exception):
    """There is no real Kafka here; the message says what is missing."""


def version() -> str:
    """The Kafka version of the pom."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{POM} names no kafka.version.")
    return found.group(1)


def jars() -> Path:
    """The folder of jars, downloaded once. Raises KafkaMissing without Java and Maven or when Maven fails."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise KafkaMissing(f"`{program}` is not installed")
    cache = Path(os.environ.get("TEST_KAFKA_CACHE") or CACHE)
    digest = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    lib = cache / f"{version()}-{digest}"
    cache.mkdir(parents=True, exist_ok=True)
    # Two test runs of one checkout must not download into each other.
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lib.is_dir():
            return lib
        partial = lib.with_name(lib.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(POM)]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise KafkaMissing(f"Maven did not fetch Kafka within {DOWNLOAD_TIMEOUT_S:g} s") from None
        if done.returncode != 0 or not partial.is_dir():
            raise KafkaMissing(f"Maven could not fetch Kafka: {(done.stdout + done.stderr).strip()}")
        partial.rename(lib)
    return lib


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def new_cluster_id() -> str:
    """A random one."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode("ascii").rstrip("=")
    return f"0{text[1:]}"  # StorageTool takes an id that starts with a dash for an option


class ApacheKafka:
    """One broker whose logs live in `folder`; it may be stopped, killed and started again on the same port.

    `settings` are added to `SETTINGS` and win; `jvm` replaces `JVM`. Set `advertised_port` before `start` to
    put a proxy between. `second_port` is another way to the same broker: who comes by it is sent on to
    `second_advertised_port`, where that is set, and never to the first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = JVM,
        node_id: int = 1,
        cluster_id: str | None = None,
    ) -> None:
        self.folder = folder
        self.version = version()
        self.settings = {**SETTINGS, **(settings or {})}
        self.node_id = node_id
        self._cluster_id = cluster_id or new_cluster_id()
        self._jvm = tuple(jvm)
        self.port, self.second_port, self._controller_port = _free_ports(3)
        self.voters = self.voter
        """Every node of the cluster; set it before `start` where there are others."""
        self.advertised_port: int | None = None
        self.second_advertised_port: int | None = None
        self.log = folder / "kafka.log"
        self._lib = jars()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """``host:port`` that clients should use: the proxy's, where there is one."""
        return f"127.0.0.1:{self.advertised_port or self.port}"

    @property
    def voter(self) -> str:
        """This node, as `controller.quorum.voters` wants it."""
        return f"{self.node_id}@127.0.0.1:{self._controller_port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise KafkaMissing("this broker is not running")
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start and wait until it answers. Raises KafkaMissing, with the end of its log, when it doesn't."""
        if self.running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text(self._properties(), encoding="utf-8")
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(properties)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,
            )
        self._wait_until_it_answers(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, a controlled shutdown; SIGKILL when it takes longer than `timeout_s`."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, and wait for it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _java(self, *arguments: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return ["java", *self._jvm, quiet, "-cp", f"{self._lib}/*", *arguments]

    def _properties(self) -> str:
        settings = {
            **self.settings,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},SECOND://127.0.0.1:{self.second_port},"
            f"CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},"
            f"SECOND://127.0.0.1:{self.second_advertised_port or self.second_port}",
            "node.id": str(self.node_id),
            "controller.quorum.voters": self.voters,
            "log.dirs": str(self.folder / "data"),
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _format(self, properties: Path) -> None:
        command = self._java("kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}")
        done = subprocess.run(
            [*command, "--config", str(properties)], check=False, capture_output=True, text=True
        )
        if done.returncode != 0:
            raise KafkaMissing(
                f"Kafka's folder could not be formatted: {(done.stdout + done.stderr).strip()}"
            )

    def _wait_until_it_answers(self, timeout_s: float) -> None:
        process = self._process
        deadline = time.monotonic() + timeout_s
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            # librdkafka would back off between its own attempts: look at the port first.
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                    time.sleep(_LOOK_AGAIN_S)
                    continue
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
            try:
                if admin.list_topics(timeout=5).brokers:
                    return
            except KafkaException:
                continue
        self.kill()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise KafkaMissing("the broker did not start:\n" + "\n".join(lines[-_LOG_TAIL_LINES:]))


def main() -> None:
    """Start one in the folder given, print its address, and stop it when the input ends or on Ctrl-C."""
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/kafka/apache_kafka.py FOLDER")
    try:
        broker = ApacheKafka(Path(sys.argv[1]).absolute())
        broker.start()
    except KafkaMissing as error:
        sys.exit(f"There is no real Kafka: {error}.")
    try:
        print(broker.bootstrap, flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        pass
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
