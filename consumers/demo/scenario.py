"""The demo from beginning to end: approve, crash, recover, replay, judge. It waits for signals, never for a
time, and does nothing that an application, an operator or a crash couldn't.
"""

import time
from contextlib import ExitStack
from typing import Final
from uuid import UUID

import confluent_kafka

from consumers.demo import summary as summaries
from consumers.demo.application import (
    MAX_COST,
    OWNER,
    PROVIDER,
    UNIT,
    approve,
    approve_and_roll_back,
    approved_frames,
)
from consumers.demo.live import View
from consumers.demo.plan import LONG_ONES, Frame, make_plan
from consumers.demo.replay import rewind
from consumers.demo.servers import DRIP_S, LATE_S, PREFIX, SESSION, Servers
from consumers.demo.summary import Approvals, Crash, Replay, Summary
from consumers.demo.watch import Watch
from consumers.observe.invariants import check_all
from consumers.observe.snapshot import Snapshot
from consumers.observe.witnesses import read_files, read_topics, read_truth
from consumers.operations.invariants import read_tables
from consumers.operations.progress import paused_accounts
from consumers.providers.simulator_world import Fault
from consumers.providers.simulator_world import Plan as SimulatorPlan
from relay.avro.catalog import Catalog

DISPATCH_TOPIC: Final = f"{PREFIX}.generation.requested"
DISPATCH_GROUP: Final = f"{PREFIX}.dispatch"
MOVES_S: Final = 60.0
"""For one step on a loaded machine."""
SETTLES_S: Final = 60.0
SETTLES_EACH_S: Final = 0.6
"""For all operations to come to an end: this, and this for each."""
BURSTS: Final = 6
"""The second part comes in so many transactions at first; the relay is killed right after one of them."""


class Scenario:
    """One run, over servers that are up."""

    def __init__(self, servers: Servers, view: View, *, operations: int, seed: int) -> None:
        """Raises ValueError for fewer operations than there are faults."""
        self._servers = servers
        self._view = view
        self._seed = seed
        self._operations = operations
        self._plan = make_plan(operations, seed)
        self._catalog = Catalog.load()
        self._assigned: dict[str, tuple[Fault, ...]] = {}
        self._crashes: list[Crash] = []
        self._started = time.monotonic()

    def run(self) -> tuple[Summary, Snapshot]:
        """Raises RelayError when a part dies or stands still; broken invariants are in the summary."""
        servers = self._servers
        with ExitStack() as stack:
            self._view.say("relay init: tables, roles, provider profiles, publication, slot")
            servers.start_provider()
            servers.prepare_database()
            self._workers = servers.make_workers()
            self._application = stack.enter_context(servers.connect("relay_app"))
            self._reader = stack.enter_context(servers.connect("relay_reader"))
            self._watch = Watch(self._reader, servers.children, self._view)
            self._allow()
            for child in self._workers.all():
                child.start()
            self._view.say("started " + ", ".join(f"{one.name} ({one.pid})" for one in self._workers.all()))
            self._approve_first_part()
            self._crash_dispatch()
            self._crash_relay()
            self._settle()
            replay = self._replay()
            self._stop()
            return self._judge(replay)

    # The application ----------------------------------------------------------------------------------------

    def _allow(self) -> None:
        limit = self._operations * MAX_COST
        with self._servers.connect("relay_operator") as operator:
            operator.execute("select relay.set_allowance(%s, %s, %s, 'demo')", [OWNER, UNIT, limit])
        self._view.say(f"{OWNER} may spend {limit} {UNIT}: exactly what is approved")

    def _approve(self, frame: Frame) -> UUID:
        return approve(self._application, frame, lambda made: self._assign(made, frame)).operation_id

    def _assign(self, operation_id: UUID, frame: Frame) -> None:
        """Before the commit: nobody can have posted it yet."""
        if frame.faults:
            self._assigned[str(operation_id)] = frame.faults
            self._servers.plan_faults(
                SimulatorPlan(assigned=self._assigned, drip_s=DRIP_S, late_s=LATE_S, polls=(1, 3))
            )

    def _approve_first_part(self) -> None:
        first = self._plan.first
        approved = [self._approve(frame) for frame in first]
        self._twice_same = self._approve(first[0]) == approved[0]
        self._rolled_back = approve_and_roll_back(
            self._application, Frame(number=self._operations + 1, prompt="a frame that nobody wanted")
        )
        self._view.say(f"approved {len(first)} frames; one of them twice, and one more rolled back")

    # The crashes --------------------------------------------------------------------------------------------

    def _crash_dispatch(self) -> None:
        dispatch = self._workers.dispatch
        self._watch.until(
            lambda: self._long_post(dispatch.pid),
            "the provider has a POST that it will not answer soon",
            MOVES_S,
        )
        pid = dispatch.kill()
        in_flight = self._watch.posting(pid)
        self._crashes.append(
            Crash(
                process=dispatch.name,
                pid=pid,
                in_flight=len(in_flight),
                of_what="operations were submitting, their answers never saved",
            )
        )
        self._view.say(f"SIGKILL to dispatch ({pid}) while {len(in_flight)} operations were submitting")
        dispatch.start()
        self._view.say(f"started dispatch again ({dispatch.pid})")

    def _long_post(self, pid: int) -> bool:
        """Whether the provider has a POST of this dispatcher that keeps it waiting for its whole deadline."""
        posting = {str(operation) for operation in self._watch.posting(pid)}
        return bool(posting) and any(
            post.reference in posting and post.fault in LONG_ONES
            for post in read_truth(self._servers.provider_url).posts
        )

    def _crash_relay(self) -> None:
        """Commit a burst of approvals and kill the relay at once: their events aren't all in Kafka yet."""
        relay = self._workers.relay
        frames = list(self._plan.second)
        burst = max(1, len(frames) // BURSTS)
        tries, missing = 0, set[UUID]()
        while not missing and frames:
            if tries:
                relay.start()
            tries += 1
            now, frames = frames[:burst], frames[burst:]
            with self._application.transaction():
                approved = [self._approve(frame) for frame in now]
            pid = relay.kill()
            missing = self._watch.first_events(approved) - self._in_kafka()
        self._crashes.append(
            Crash(
                process=relay.name,
                pid=pid,
                in_flight=len(missing),
                of_what="committed rows were not in Kafka yet",
                tries=tries,
            )
        )
        self._view.say(f"SIGKILL to relay ({pid}) while {len(missing)} committed rows were not in Kafka")
        for frame in frames:
            self._approve(frame)
        self._view.say(
            f"approved {len(self._plan.second)} more frames, {len(frames)} of them without a relay"
        )
        relay.start()
        self._view.say(f"started relay again ({relay.pid})")

    def _in_kafka(self) -> set[UUID]:
        records, _ = read_topics(self._servers.brokers, PREFIX, self._catalog)
        return {record.event_id for record in records if record.event_id is not None}

    # The end ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._view.say("waiting until every operation is final, or waits for a person")
        patience_s = SETTLES_S + SETTLES_EACH_S * self._operations
        self._watch.until(self._quiet, "no operation moves any more", patience_s)
        waiting = self._watch.progress().waiting
        if waiting:
            held = ", ".join(f"{count} for {reason}" for reason, count in waiting.items())
            self._view.say(f"held until something outside changes: {held}")
        self._watch.until(self._all_published, "every committed event is in Kafka", MOVES_S)

    def _quiet(self) -> bool:
        """A job that takes long on a busy machine is given up like a stuck one, but comes to its end."""
        progress = self._watch.progress()
        stuck = {UUID(one) for one, faults in self._assigned.items() if Fault.JOB_STUCK in faults}
        return not progress.busy and progress.given_up <= stuck

    def _all_published(self) -> bool:
        return self._watch.events() <= self._in_kafka()

    def _replay(self) -> Replay:
        dispatch = self._workers.dispatch
        before = len(read_truth(self._servers.provider_url).posts)
        dispatch.stop()
        rewind(self._servers.brokers | SESSION, DISPATCH_GROUP, DISPATCH_TOPIC)
        since = self._watch.now()
        events = self._watch.events("generation.requested")
        dispatch.start()
        self._view.say(f"replaying {len(events)} events of {DISPATCH_TOPIC} from offset 0")
        self._watch.until(
            lambda: events <= self._watch.delivered_since(DISPATCH_GROUP, since),
            "the dispatcher has seen all of them again",
            MOVES_S,
        )
        after = len(read_truth(self._servers.provider_url).posts)
        self._view.say(f"the provider counted {before} POSTs before, and {after} after")
        return Replay(events=len(events), posts_before=before, posts_after=after)

    def _stop(self) -> None:
        """SIGTERM to all: each finishes what it has in hand; the relay last, since they write events to the
        end."""
        for child in self._workers.consumers():
            child.stop()
        self._watch.until(self._all_published, "every committed event is in Kafka", MOVES_S)
        self._workers.relay.stop()
        self._view.say("stopped all of them, cleanly")

    def _judge(self, replay: Replay) -> tuple[Summary, Snapshot]:
        servers = self._servers
        records, dead_letters = read_topics(servers.brokers, PREFIX, self._catalog)
        snapshot = Snapshot(
            tables=read_tables(self._reader),
            records=records,
            dead_letters=dead_letters,
            truth=read_truth(servers.provider_url),
            files=read_files(servers.outputs),
            delivery="at_least_once",
            provider_account=f"{PROVIDER}/default",
            rolled_back=frozenset({self._rolled_back}),
        )
        uncertain, others = summaries.reviews(snapshot)
        found = {operation.operation_id for operation in snapshot.tables.operations}
        summary = Summary(
            operations=self._operations,
            seed=self._seed,
            seconds=round(time.monotonic() - self._started, 1),
            postgres=servers.postgres.version,
            kafka=f"librdkafka's embedded broker {confluent_kafka.libversion()[0]}",
            delivery=snapshot.delivery,
            delivery_note=summaries.AT_LEAST_ONCE,
            approvals=Approvals(
                frames=self._operations,
                revisions=approved_frames(self._application),
                rolled_back=1,
                rolled_back_found=int(self._rolled_back in found),
                approved_twice_same_operation=self._twice_same,
            ),
            phases=summaries.phases(snapshot),
            posts=len(snapshot.truth.posts),
            jobs=len(snapshot.truth.jobs),
            files=summaries.files(snapshot),
            faults=summaries.faults(self._plan.expected, snapshot.truth.faults),
            crashes=self._crashes,
            replay=replay,
            duplicates=summaries.duplicates(snapshot),
            parked=len(snapshot.tables.parked) + self._watch.parked_by_consumers(),
            paused=paused_accounts(self._reader),
            uncertain=uncertain,
            other_reviews=others,
            invariants=summaries.invariants(check_all(snapshot)),
        )
        return summary, snapshot
