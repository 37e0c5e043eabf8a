"""`relay outbox republish`: ask the running relay for parked events. It publishes them itself, in stream
order: a second producer would fence it.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from relay.cli import loaded
from relay.commands.outbox_parked import connected
from relay.commands.who import who
from relay.errors import UsageError
from relay.settings import Settings

if TYPE_CHECKING:
    import psycopg

    from relay.outbox.parked import Refusal

WAIT_S: Final = 30.0

_LOGIN: Final = "See `relay outbox parked show EVENT_ID`; to ask for one takes a member of relay_operator."
_BATCH: Final = 100  # requests in one transaction: reading stands still for about a millisecond at each
_LOOK_EVERY_S: Final = 0.1
_UNDER_WAY: Final = frozenset({"requested", "publishing"})


@click.command("republish", short_help="Publish parked events, corrected if need be.")
@click.argument("event_ids", nargs=-1, type=click.UUID)
@click.option("--all-of-type", "event_type", help="Every parked event of this type.")
@click.option(
    "--behind", "key", help="Every parked event of this key, in order, with those that came meanwhile."
)
@click.option(
    "--payload",
    "payload_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The corrected payload of the one event; what came is kept.",
)
@click.option("--why", help="Kept with who and when; a correction needs it.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=WAIT_S,
    show_default=True,
    help="Seconds that the relay gets to publish them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    event_ids: tuple[UUID, ...],
    event_type: str | None,
    key: str | None,
    payload_file: Path | None,
    why: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    """Ask for parked events by EVENT_ID, by type or by key.

    The relay publishes them where the request commits. They keep their ids and carry relay_origin=republish.
    One that is still bad is parked again, with the new reason. Ends with 1 when one was refused or parked
    again. What the relay hasn't come to yet stays asked for.
    """
    settings = loaded(ctx).settings
    if (bool(event_ids) + (event_type is not None) + (key is not None)) != 1:
        raise UsageError("Say which: EVENT_IDs, or --all-of-type TYPE, or --behind KEY.")
    if payload_file is not None and (len(event_ids) != 1 or not why):
        raise UsageError("--payload corrects one EVENT_ID, and --why says why.")
    with connected(settings, _LOGIN, "republish") as (connection, relay_id):
        asking = _Asking(connection, relay_id, why=why, until=time.monotonic() + wait_s)
        if key is not None:
            asking.behind(key)
        else:
            from relay.outbox import parked

            chosen = list(event_ids) or parked.waiting(connection, relay_id, event_type=event_type)
            asking.ask(chosen, _correction(connection, relay_id, settings, chosen, payload_file))
            asking.watch(chosen)
    _report(asking, as_json=as_json)
    if asking.refused or asking.counts["parked"]:
        ctx.exit(1)


class _Asking:
    """Requests, and what has become of them."""

    def __init__(
        self, connection: "psycopg.Connection[Any]", relay_id: UUID, *, why: str | None, until: float
    ) -> None:
        self._connection = connection
        self._relay_id = relay_id
        self._why = why
        self._until = until
        self.refused: list[Refusal] = []
        self.states: dict[UUID, tuple[str, str]] = {}

    @property
    def counts(self) -> "Counter[str]":
        return Counter(state for state, _ in self.states.values())

    def ask(self, event_ids: Sequence[UUID], payload: str | None = None) -> None:
        from relay.outbox import parked

        for start in range(0, len(event_ids), _BATCH):
            batch = event_ids[start : start + _BATCH]
            self.refused += parked.request(
                self._connection, self._relay_id, batch, who=who(), why=self._why, payload=payload
            )

    def watch(self, event_ids: Sequence[UUID]) -> None:
        """Until the relay has come to all of them, or the time is up."""
        from relay.outbox import parked

        refused = {refusal.event_id for refusal in self.refused}
        left = [event_id for event_id in event_ids if event_id not in refused]
        while left:
            found = parked.states(self._connection, self._relay_id, left)
            self.states |= found
            left = [event_id for event_id, (state, _) in found.items() if state in _UNDER_WAY]
            if time.monotonic() >= self._until:
                return
            if left:
                time.sleep(_LOOK_EVERY_S)

    def behind(self, key: str) -> None:
        """All of the key, and those that the relay parked behind them in the meantime, until none is left."""
        from relay.outbox import parked

        while event_ids := parked.waiting(self._connection, self._relay_id, key=key):
            self.ask(event_ids)
            self.watch(event_ids)
            # One that is parked again, or not yet published, keeps the later ones waiting.
            if self.refused or any(state != "republished" for state, _ in self.states.values()):
                return


def _correction(
    connection: "psycopg.Connection[Any]",
    relay_id: UUID,
    settings: Settings,
    event_ids: Sequence[UUID],
    payload_file: Path | None,
) -> str | None:
    """The corrected payload as the row keeps it. Raises UsageError where there is none at all."""
    from relay.outbox import parked
    from relay.outbox.mapping import of_settings
    from relay.outbox.parts import is_hex, storable
    from relay.wal.slot import has_event

    if len(event_ids) != 1:
        return None
    mapping = of_settings(settings)
    row = parked.show(connection, relay_id, event_ids[0])
    if payload_file is None:
        lost = row["payload"] is None and row["correction"] is None and row["payload_bytes"] > 0
        event_id = row["parts"].get("event_id", str(row["event_id"]))
        if lost and not (mapping.rows_kept and has_event(connection, mapping, event_id)):
            raise UsageError(
                f"The payload of {row['event_id']} ({row['payload_bytes']} bytes) was not kept, and no outbox"
                " has it.",
                remedy=f"Give it: `relay outbox republish {row['event_id']} --payload FILE --why '…'`.",
            )
        return None
    content = payload_file.read_bytes()
    if is_hex(row["parts"]):
        return "\\x" + content.hex()
    text = storable(content)
    if text is None or (mapping.payload == "avro" and not _is_json(text)):
        raise UsageError(f"{payload_file} is no {'JSON' if mapping.payload == 'avro' else 'text in UTF-8'}.")
    return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _report(asking: _Asking, *, as_json: bool) -> None:
    counts = asking.counts
    if as_json:
        click.echo(
            json.dumps(
                {
                    "events": {str(event_id): state for event_id, (state, _) in asking.states.items()},
                    "reasons": {
                        str(event_id): reason
                        for event_id, (state, reason) in asking.states.items()
                        if state == "parked"
                    },
                    "refused": {str(refusal.event_id): refusal.why for refusal in asking.refused},
                }
            )
        )
        return
    for refusal in asking.refused:
        click.echo(f"not asked for: {refusal.why}")
    for event_id, (state, reason) in asking.states.items():
        if state == "parked":
            click.echo(f"parked again: {event_id}: {reason}")
    said = ", ".join(f"{counts[state]} {state}" for state in sorted(counts)) or "nothing to republish"
    click.echo(said)
    if _UNDER_WAY & counts.keys():
        click.echo(
            "The relay hasn't come to all of them yet; they stay asked for. `relay status` shows whether it"
            " runs."
        )
