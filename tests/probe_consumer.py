"""A consumer for tests: it does what each event's `job_id` says, and prints when it begins and ends.

``hold:X`` waits for the file X in PROBE_FOLDER, ``protected:X`` does so inside `uncancelled`, ``transient:X``
and ``away:X`` fail until X exists, ``mended:X`` does so for good each time, ``permanent`` and ``broken``
fail, ``last:S`` takes S seconds; else it returns.
"""

import asyncio
import contextlib
import os
import sys
from pathlib import Path

import psycopg

from consumers.runtime import Consumer, Context, Event, Permanent, Transient
from fix_waiting import eventually_async


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def _until(gate: str) -> None:
    async def opened() -> bool:
        return _open(gate)

    await eventually_async(opened, f"the gate {gate} opens")


async def _take(seconds: float) -> None:
    """Work that lasts that long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


def _open(gate: str) -> bool:
    return (Path(os.environ["PROBE_FOLDER"]) / gate).exists()


class Probe(Consumer):
    name = "probe"
    topics = ("collection.requested",)

    async def open(self, ctx: Context) -> None:
        say("probe opened")

    async def handle(self, event: Event, ctx: Context) -> None:
        what = str(event.payload["job_id"])
        verb, _, gate = what.partition(":")
        say(f"begin {what} key={event.key} at={event.partition}/{event.offset}")
        try:
            match verb:
                case "hold":
                    await _until(gate)
                case "protected":
                    async with ctx.uncancelled():
                        await _until(gate)
                        say(f"unprotected {what}")
                case "transient" if not _open(gate):
                    raise Transient("the gate is closed")
                case "away" if not _open(gate):
                    raise psycopg.OperationalError("the server has gone")
                case "mended" if not _open(gate):
                    raise Permanent("nobody has mended it yet")
                case "permanent":
                    raise Permanent("no gate will ever open")
                case "broken":
                    raise ZeroDivisionError("a bug of the handler")
                case "last":
                    await _take(float(gate))
        except asyncio.CancelledError:
            say(f"cancelled {what}")
            raise
        say(f"end {what} key={event.key} at={event.partition}/{event.offset}")

    async def close(self) -> None:
        say("probe closed")


class Raw(Consumer):
    """Takes records as they are."""

    name = "raw"
    topics = ("collection.requested",)
    decodes = False

    async def handle(self, event: Event, ctx: Context) -> None:
        say(f"raw {event.raw!r} payload={dict(event.payload)}")
