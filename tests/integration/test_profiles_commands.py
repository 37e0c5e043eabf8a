"""`relay profiles` says what a person, or a program, needs before a profile is trusted with money."""

import json
from pathlib import Path

import psycopg

from consumers.providers.profiles_folder import SHIPPED
from fix_commands import Command
from fix_postgres import Database
from provider_shapes import KEY, SHAPES, Shape

LUMA = (SHIPPED / "luma.yaml").read_text()


def test_a_profile_is_checked_against_a_provider_and_says_what_was_confirmed(
    command: Command, tmp_path: Path
) -> None:
    routes, prefix, payload = SHAPES["luma"]
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    file = tmp_path / "luma.yaml"
    file.write_text(LUMA.replace("min_s: 5", "min_s: 0.01"))
    with Shape(routes, prefix=prefix) as shape:
        env = {"RELAY_PROVIDER_LUMA_SECRET": KEY}
        args = (
            "profiles",
            "check",
            str(file),
            "--against",
            shape.url,
            "--payload",
            str(tmp_path / "payload.json"),
        )
        checked = command(*args, "--json", env=env)
        assert checked.status == 0, checked.err
        said = {one["field"]: one["said"] for one in checked.json["findings"]}
        assert said["accept.0.job_id"] == said["observe.outputs"] == "confirmed"
        assert said["cancel"] == "not seen"
        assert checked.json["jobs"] == list(shape.jobs)

        file.write_text(file.read_text().replace("completed: succeeded", "complete: succeeded"))
        wrong = command(*args, env=env)
        assert wrong.status == 1
        assert "observe.words.completed" in wrong.err
        assert "Jobs that were made there: " in wrong.out
        assert KEY not in wrong.out + wrong.err


def test_a_wrong_file_is_told_by_line_and_column_with_the_mend(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(LUMA.replace("late_delivery_s: 900", "late_delivry_s: 900"))
    told = command("profiles", "check", str(file), env={})
    line = next(
        n for n, text in enumerate(file.read_text().splitlines(), 1) if text.startswith("late_delivry")
    )
    assert told.status == 2
    assert f"{file}, line {line}, column 1," in told.err
    assert "Did you mean late_delivery_s?" in told.err

    missing = command("profiles", "check", str(tmp_path / "no.yaml"), env={})
    assert (missing.status, "can't be read" in missing.err) == (2, True)


def test_a_pushed_profile_is_another_digest_and_the_one_before_stays_as_it_was(
    command: Command, database: Database, tmp_path: Path
) -> None:
    env = {"RELAY_DATABASE_URL": database.url}
    file = tmp_path / "luma.yaml"
    file.write_text(LUMA)
    first = command("profiles", "push", str(file), "--json", env=env).json
    again = command("profiles", "push", str(file), "--json", env=env).json
    file.write_text(LUMA + "# another\n")
    second = command("profiles", "push", str(file), "--json", env=env).json
    assert [one[0]["changed"] for one in (first, again, second)] == [True, False, True]
    assert first[0]["digest"] != second[0]["digest"]
    with psycopg.connect(database.url) as connection:
        kept = connection.execute(
            "select digest, document from relay.provider_profile where provider = 'luma' order by pushed_at"
        ).fetchall()
        assert kept == [(first[0]["digest"], LUMA), (second[0]["digest"], LUMA + "# another\n")]

    listed = command("profiles", "list", "--registered", "--json", env=env).json
    luma = next(one for one in listed if one["name"] == "luma")
    assert luma["in_force"] == second[0]["digest"]
    assert luma["sources"][0] == "lumaai 1.21.0 (published Python client)"

    worker = command(
        "profiles", "push", str(file), env={"RELAY_DATABASE_URL": database.url_as("relay_worker")}
    )
    assert (worker.status, "may not register" in worker.err) == (2, True)
