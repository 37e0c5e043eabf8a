"""`relay profiles`: what each provider's document declares, whether a file is one, and which is in force."""

import asyncio
from pathlib import Path
from typing import Any

import click
import psycopg

from consumers.commands.session import json_option, say_json, with_database
from consumers.operations import accounts, providers
from consumers.providers.contract import Contract, Finding
from consumers.providers.profile import Profile
from consumers.providers.profiles_folder import load_profiles, read_profile
from consumers.registered import secret_of
from consumers.terminal import draw, table
from relay.cli import loaded
from relay.errors import RelayError, UsageError
from relay.settings import Settings

file_argument = click.argument("file", type=click.Path(path_type=Path))


@click.group("profiles", short_help="Provider profiles: list, check and register them.")
def command() -> None:
    """Provider profiles. A released one never changes: a changed document is another one, by its digest."""


@command.command("list", short_help="The profiles of the folders, and what they declare.")
@click.option("--registered", is_flag=True, help="Also ask the database which are in force.")
@json_option
@click.pass_context
def list_(ctx: click.Context, *, registered: bool, as_json: bool) -> None:
    """The shipped profiles and those of RELAY_PROFILES: what each declares, and how much is unverified."""
    found = load_profiles(loaded(ctx).settings.profiles)
    in_force: dict[str, str] = with_database(ctx, _in_force) if registered else {}
    told = [_told(one, in_force.get(one.name) if registered else None) for one in found.values()]
    if as_json:
        say_json(told)
        return
    rows = (
        (
            str(one["name"]),
            str(one["digest"])[:12],
            str(one["idempotency"]),
            str(one["cancel"]),
            "yes" if one["listing"] else "",
            "yes" if one["webhooks"] else "",
            str(len(one["unverified"])),
            *((str(one["in_force"] or "")[:12],) if registered else ()),
        )
        for one in told
    )
    titles = ("profile", "digest", "repeats", "cancel", "lists jobs", "webhooks", "unverified")
    draw(table((*titles, *(("in force",) if registered else ())), rows))


@command.command("check", short_help="Is FILE a profile, and is it right about its provider?")
@file_argument
@click.option(
    "--against", metavar="URL", help="Run it against the provider at this URL. It makes jobs there."
)
@click.option(
    "--payload",
    type=click.Path(path_type=Path, exists=True),
    help="What is submitted; a JSON file. Needs --against.",
)
@click.option("--cancel", is_flag=True, help="Make a second job there, and cancel it.")
@click.option("--patience", "patience_s", type=click.FloatRange(1), default=600.0, show_default=True)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    *,
    file: Path,
    against: str | None,
    payload: Path | None,
    cancel: bool,
    patience_s: float,
    as_json: bool,
) -> None:
    """Validate FILE. With --against, submit PAYLOAD once, observe it to its end, and say which declared
    fields the provider confirmed. The credential is RELAY_PROVIDER_<NAME>_SECRET or …_SECRET_FILE."""
    profile = read_profile(file)
    if against is None:
        if payload is not None or cancel:
            raise UsageError("--payload and --cancel need --against.", remedy="Say --against URL.")
        _say_checked(profile, [], as_json=as_json)
        return
    if payload is None:
        raise UsageError("What to submit is missing.", remedy="Say --payload FILE: it is sent as it is.")
    run = Contract(
        profile=profile,
        base_url=against,
        secret=_secret(loaded(ctx).settings, profile),
        payload=payload.read_bytes(),
        patience_s=patience_s,
    )
    findings = asyncio.run(run.run(cancel=cancel))
    _say_checked(profile, findings, jobs=run.jobs, as_json=as_json)
    wrong = [one.field for one in findings if one.said == "contradicted"]
    if wrong:
        raise RelayError(
            f"The provider contradicts the profile {profile.name} at {', '.join(wrong)}.",
            remedy="Compare with its documentation; a profile that is wrong there loses or doubles jobs.",
        )


@command.command("push", short_help="Register FILEs, and put each in force for what is approved from now on.")
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True)
@json_option
@click.pass_context
def push(ctx: click.Context, *, files: tuple[Path, ...], as_json: bool) -> None:
    """Register each FILE under its digest and make it its account's current profile. What was approved before
    keeps the one that it was approved with."""
    profiles = [read_profile(file) for file in files]
    url = loaded(ctx).settings.require_database()
    with psycopg.connect(url, autocommit=True, application_name="outbox-relay profiles push") as connection:
        try:
            changed = providers.push(connection, profiles)
        except psycopg.errors.InsufficientPrivilege as error:
            raise UsageError(
                f"This login may not register a profile: {error.diag.message_primary}.",
                remedy="Use the login that ran `relay init`.",
            ) from None
    if as_json:
        say_json(
            [{"name": one.name, "digest": one.digest, "changed": one.name in changed} for one in profiles]
        )
        return
    for one in profiles:
        done = "is in force" if one.name in changed else "was in force already"
        click.echo(f"{one.name} {one.digest[:12]} {done} for the account {one.account}.")


async def _in_force(connection: psycopg.AsyncConnection[Any], _: Settings) -> dict[str, str]:
    return {one.provider: one.current_digest for one in await accounts.accounts(connection)}


def _secret(settings: Settings, profile: Profile) -> str | None:
    configured = settings.providers.get(profile.name)
    return None if configured is None else secret_of(profile.name, configured)


def _told(profile: Profile, in_force: str | None) -> dict[str, Any]:
    cancel = profile.cancel
    return {
        "name": profile.name,
        "digest": profile.digest,
        "account": profile.account,
        "idempotency": "never"
        if profile.idempotency == "none"
        else f"for {profile.idempotency.retention_s:g} s",
        "cancel": "" if cancel is None else "destroys" if cancel.destroys else "yes",
        "listing": profile.listing is not None,
        "webhooks": profile.webhooks is not None,
        "sources": list(profile.sources),
        "unverified": list(profile.unverified),
        "in_force": in_force,
    }


def _say_checked(
    profile: Profile, findings: list[Finding], *, jobs: list[str] | None = None, as_json: bool
) -> None:
    if as_json:
        say_json({**_told(profile, None), "findings": findings, "jobs": jobs or []})
        return
    click.echo(f"{profile.name} is a profile; its digest is {profile.digest}.")
    if profile.unverified:
        click.echo(f"No published source confirms: {', '.join(profile.unverified)}.")
    if findings:
        draw(table(("field", "", "what was seen"), ((one.field, one.said, one.what) for one in findings)))
        click.echo(f"Jobs that were made there: {', '.join(jobs or []) or 'none'}.")
