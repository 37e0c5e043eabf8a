"""Replays the spool of processes that are gone, on any host: each answer is applied by its attempt, as the
process itself would have done. It sends nothing, touches no folder whose process lives, and drops nothing
that it can't apply.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from consumers.leftover import told
from consumers.operations.answers import Applied, apply_submission, attempted
from consumers.providers.spool import SpoolEntry, entries, remove_folder, try_lock
from consumers.providers.spools import process_folders
from consumers.registered import Providers
from relay import failpoints
from relay.errors import SchemaError

Connection = psycopg.AsyncConnection[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An entry that the database has now, and is gone from the spool. `result`: moved, or only recorded."""

    attempt_id: str
    operation_id: str
    verdict: str
    reason: str
    job_id: str | None
    result: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An entry that stays where it is, and why."""

    path: str
    attempt_id: str
    operation_id: str
    why: str


@dataclass(slots=True, kw_only=True)
class Imported:
    applied: list[Done] = field(default_factory=list)
    kept: list[Left] = field(default_factory=list)
    in_use: list[str] = field(default_factory=list)
    """Folders whose process, or another import, is at work on them."""


async def import_spool(connection: Connection, providers: Providers, folder: Path, *, actor: str) -> Imported:
    """Apply every entry in `folder`, a spool or one process's folder of it. May be repeated, and run beside
    workers. Raises SpoolError when it can't be read, and psycopg's errors: what was applied until then is."""
    done = Imported()
    for own in process_folders(folder):
        lock = try_lock(own)
        if lock is None:
            done.in_use.append(str(own))
            continue
        try:
            for entry in entries(own):
                await _take(connection, providers, entry, done, actor)
            remove_folder(own)
        finally:
            os.close(lock)
    return done


async def _take(
    connection: Connection, providers: Providers, entry: SpoolEntry, done: Imported, actor: str
) -> None:
    why = None
    if entry.damaged:
        why = "a line of it can't be read: look at the file, it may name a job"
    else:
        applied: Done | str
        try:
            applied = await _apply(connection, providers, entry, actor)
        except SchemaError as error:
            applied = str(error)
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            # The next entry may be fine; this one waits for whoever mends it.
            applied = f"the database refuses it: {str(error).strip()}"
        if isinstance(applied, Done):
            failpoints.hit(failpoints.SPOOL_IMPORT_APPLIED)
            entry.path.unlink(missing_ok=True)
            done.applied.append(applied)
            return
        why = applied
    done.kept.append(
        Left(path=str(entry.path), attempt_id=entry.attempt_id, operation_id=entry.operation_id, why=why)
    )


async def _apply(connection: Connection, providers: Providers, entry: SpoolEntry, actor: str) -> Done | str:
    """What was applied, or why nothing was."""
    try:
        attempt_id = UUID(entry.attempt_id)
    except ValueError:
        return "its name is no attempt's id"
    found = await attempted(connection, attempt_id)
    if found is None:
        return (
            "this database doesn't know the attempt: it is another's, or was restored from before it"
            " (`relay ops reconcile` brings it back)"
        )
    if entry.operation_id and entry.operation_id != str(found.operation_id):
        return f"the database has this attempt for operation {found.operation_id}"
    profile = await providers.profile(connection, found.provider, found.profile_digest)
    outcome = told(entry, profile, providers.secrets(profile.name))
    result = await apply_submission(
        connection,
        attempt_id=attempt_id,
        operation_id=found.operation_id,
        outcome=outcome,
        profile=profile,
        actor=actor,
    )
    if result is Applied.NO_ATTEMPT:
        return "this database doesn't know the attempt"
    return Done(
        attempt_id=entry.attempt_id,
        operation_id=str(found.operation_id),
        verdict=outcome.verdict,
        reason=outcome.reason,
        job_id=outcome.job_id,
        result=str(result),
    )
