"""`relay init` refuses what it can't prepare in a sentence with its remedy, and leaves nothing half done."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from consumers.providers.profiles_folder import load_profiles
from fix_commands import Command
from fix_postgres import Database
from relay.embedded_postgres import EmbeddedPostgres


@pytest.fixture
def owner(empty_database: Database) -> Iterator[psycopg.Connection[Any]]:
    with empty_database.connect() as connection:
        yield connection


def settings(database: Database, **more: str) -> dict[str, str]:
    names = {"RELAY_SLOT": database.name, "RELAY_PUBLICATION": database.name}
    return {"RELAY_DATABASE_URL": database.url, **names, **more}


def publications(owner: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in owner.execute("select pubname from pg_publication").fetchall()]


def test_a_login_that_may_create_nothing_is_told_which_may(
    empty_database: Database, owner: psycopg.Connection[Any], command: Command
) -> None:
    owner.execute("drop role if exists may_create_nothing")
    owner.execute("create role may_create_nothing login password 'x'")
    url = empty_database.server.url(empty_database.name, user="may_create_nothing", password="x")
    done = command("init", env={"RELAY_DATABASE_URL": url})
    assert done.status == 1
    assert "Postgres refused it: permission denied" in done.err
    assert "CREATEROLE and REPLICATION" in done.err
    assert "Traceback" not in done.err


def test_an_outbox_that_is_not_there_is_wrong_use(empty_database: Database, command: Command) -> None:
    done = command("init", env=settings(empty_database, RELAY_OUTBOX_TABLE="public.nothing"))
    assert done.status == 2
    assert "RELAY_OUTBOX_TABLE" in done.err


def test_a_column_that_the_outbox_does_not_have_is_named_before_anything_is_made(
    empty_database: Database, owner: psycopg.Connection[Any], command: Command
) -> None:
    owner.execute("create table outbox (id uuid primary key, kind text, ref text, body jsonb)")
    columns = '{"event_id": "id", "event_type": "typ", "operation_id": "ref", "payload": "body"}'
    env = settings(empty_database, RELAY_OUTBOX_TABLE="public.outbox", RELAY_OUTBOX_COLUMNS=columns)
    done = command("init", env=env)
    assert done.status == 2
    assert 'the outbox "public"."outbox" has no column typ' in done.err
    assert publications(owner) == []


def test_a_publication_of_other_tables_is_somebody_elses_and_no_altered_outbox(
    empty_database: Database, owner: psycopg.Connection[Any], command: Command
) -> None:
    owner.execute("create table theirs (id int primary key)")
    owner.execute(f"create publication {empty_database.name} for table theirs")
    done = command("init", env=settings(empty_database))
    assert done.status == 2
    assert "RELAY_PUBLICATION" in done.err
    assert "skipped" not in done.err


def test_a_relay_is_not_turned_to_another_outbox(
    empty_database: Database, owner: psycopg.Connection[Any], command: Command
) -> None:
    assert command("init", env=settings(empty_database)).status == 0
    owner.execute(
        "create table outbox (id uuid, aggregatetype text, aggregateid text, type text, payload text)"
    )
    other = {"RELAY_OUTBOX_TABLE": "public.outbox", "RELAY_OUTBOX_COLUMNS": "debezium"}
    done = command("init", env=settings(empty_database, RELAY_PUBLICATION="other", **other))
    assert done.status == 2
    assert "was made for relay.outbox" in done.err
    assert publications(owner) == [empty_database.name]


@pytest.mark.parametrize("lacking", [{"wal_level": "replica"}, {"max_replication_slots": "0"}])
def test_a_server_without_logical_replication_is_told_what_to_set_and_can_go_on(
    own_postgres: EmbeddedPostgres, command: Command, lacking: dict[str, str]
) -> None:
    wanted = {name: own_postgres.settings[name] for name in lacking}
    own_postgres.stop("immediate")
    own_postgres.settings.update(lacking)
    own_postgres.start()
    done = command("init", env={"RELAY_DATABASE_URL": own_postgres.superuser_url})
    assert done.status == 2
    assert "wal_level" in done.err
    assert "max_replication_slots" in done.err
    own_postgres.stop("immediate")
    own_postgres.settings.update(wanted)
    own_postgres.start()
    assert command("init", env={"RELAY_DATABASE_URL": own_postgres.superuser_url}).status == 0


def test_a_profile_that_another_one_replaces_is_said_to(
    empty_database: Database, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "genace.yaml").write_text(
        load_profiles(())["genace"].text.replace("deadline_s: 60", "deadline_s: 61"), encoding="utf-8"
    )
    first = command("init", "--no-slot", env=settings(empty_database))
    assert "registered the provider profile genace (" in first.out
    assert "in place of" not in first.out
    ours = command("init", "--no-slot", env=settings(empty_database, RELAY_PROFILES=str(tmp_path)))
    assert ours.out.count("in place of") == 1
    back = command("init", "--no-slot", env=settings(empty_database))
    assert "registered the provider profile genace (" in back.out
    assert back.out.count("in place of") == 1
