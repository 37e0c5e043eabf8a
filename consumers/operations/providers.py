"""Provider profiles as the database keeps them: immutable documents by digest, and which one is current."""

from collections.abc import Iterable
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from consumers.operations.queries import Queries
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import load_profiles
from relay.errors import SchemaError, UsageError
from relay.settings import Settings

_SQL: Final = Queries("providers")


async def profile(connection: psycopg.AsyncConnection[Any], provider: str, digest: str) -> Profile:
    """The profile that an operation was approved with. Raises SchemaError when it isn't registered."""
    cursor = await connection.execute(_SQL["document"], {"provider": provider, "digest": digest})
    row = await cursor.fetchone()
    if row is None:
        raise SchemaError(
            f"The profile {provider} with digest {digest} is not registered in this database.",
            remedy="Run `relay init` with the folder that has it in RELAY_PROFILES.",
        )
    return Profile.parse(row[0], source=f"relay.provider_profile {provider} {digest[:12]}")


async def current(connection: psycopg.AsyncConnection[Any]) -> dict[tuple[str, str], Profile]:
    """The profile in force, by provider and account. One that can't be read any more is left out."""
    cursor = await connection.execute(_SQL["current_documents"])
    found: dict[tuple[str, str], Profile] = {}
    for name, account, document in await cursor.fetchall():
        try:
            found[name, account] = Profile.parse(document, source=f"relay.provider_profile {name}")
        except UsageError:
            continue  # an operation of it says so; nobody else's webhooks wait for that
    return found


def push(connection: psycopg.Connection[Any], profiles: Iterable[Profile]) -> list[str]:
    """Register `profiles` and make each its account's current one. Returns the names whose digest is new."""
    changed: list[str] = []
    with connection.transaction():
        for one in profiles:
            parameters = {
                "provider": one.name,
                "account": one.account,
                "digest": one.digest,
                "document": one.text,
                "idempotency": _declared(one),
            }
            connection.execute(_SQL["push_profile"], parameters)
            for kind, seconds in one.review_deadlines_s.items():
                connection.execute(_SQL["push_deadline"], parameters | {"kind": kind, "seconds": seconds})
            if connection.execute(_SQL["push_account"], parameters).rowcount:
                changed.append(one.name)
    return changed


def init_step(connection: psycopg.Connection[Any], settings: Settings) -> list[str]:
    """What `relay init` calls through the entry-point group `relay.init`: sentences of what was done."""
    profiles = load_profiles(settings.profiles)
    rows = connection.execute(_SQL["current"]).fetchall()
    before = {(provider, account): digest for provider, account, digest in rows}
    sentences = []
    for name in push(connection, profiles.values()):
        one = profiles[name]
        replaced = before.get((one.name, one.account))
        # Said, because an init without somebody's RELAY_PROFILES puts the shipped profile in force again.
        was = "" if replaced is None else f", in place of {replaced[:12]}"
        sentences.append(f"registered the provider profile {name} ({one.digest[:12]}{was})")
    return sentences


def _declared(profile: Profile) -> Jsonb | None:
    """What the database holds replays to: all of it from the document, and nothing where it declares none."""
    declared = profile.idempotency
    if declared == "none":
        return None
    return Jsonb(
        {
            "retention_s": declared.retention_s,
            "request_s": profile.submit.deadline_s + profile.margin_s,
            "min_s": declared.between.min_s,
            "max_s": declared.between.max_s,
            "factor": declared.between.factor,
        }
    )
