"""What is left of a demo in its folder, and how to look at it later. The broker keeps nothing, so its records
are written down.
"""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from consumers.demo.servers import DATABASE, POSTGRES_SETTINGS, PREFIX
from consumers.demo.summary import Summary
from consumers.observe.snapshot import Snapshot
from relay.embedded_postgres import EmbeddedPostgres
from relay.errors import UsageError

SUMMARY: Final = "summary.json"
TOPICS: Final = "topics.jsonl"
TRUTH: Final = "truth.json"


def write(folder: Path, summary: Summary, snapshot: Snapshot) -> None:
    """Write the summary, every record of the topics, and what the provider knew."""
    (folder / SUMMARY).write_bytes(summary.json())
    records = sorted(snapshot.records, key=lambda one: (one.topic, one.partition, one.offset))
    (folder / TOPICS).write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    (folder / TRUTH).write_bytes(msgspec.json.format(msgspec.json.encode(snapshot.truth), indent=2))


def how_to_look(folder: Path) -> str:
    """For a person."""
    return "\n".join(
        (
            f"Kept in {folder}:",
            f"  {SUMMARY}, {TOPICS} (every record), {TRUTH} (what the provider knew)",
            "  logs/ of each process, outputs/ with the delivered files, postgres/ with the tables",
            f"  relay demo --look {folder}",
            "      starts its PostgreSQL again and says how to reach it, for `relay review show`",
        )
    )


def look(folder: Path, say: Callable[[str], None]) -> None:
    """Start the PostgreSQL of a kept folder, say how to reach it, and stop it at SIGINT or SIGTERM.

    Raises UsageError when the folder isn't a kept demo's.
    """
    if not (folder / "postgres" / "data").is_dir():
        raise UsageError(f"{folder} is not the folder of a demo that was kept.", remedy="Give --keep's.")
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: over.set())
    with EmbeddedPostgres(folder / "postgres", settings=POSTGRES_SETTINGS) as postgres:
        say(f"export RELAY_DATABASE_URL='{postgres.url(DATABASE)}'")
        say(f"export RELAY_TOPIC_PREFIX={PREFIX}")
        say("PostgreSQL runs until Ctrl-C; nothing else does, so nothing moves.")
        over.wait()
