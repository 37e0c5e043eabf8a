"""A wrong setting is one sentence that names it and where it was said, with the status of wrong use."""

import traceback
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from relay.errors import UsageError
from relay.settings import load


@pytest.mark.parametrize(
    ("url", "attributes"),
    [
        ("postgresql://u@a:1,b:2/app", "read-write"),
        ("host=a,b dbname=app", "read-write"),
        ("hostaddr=10.0.0.1,10.0.0.2 dbname=app", "read-write"),
        ("postgresql://u@a,b/app?target_session_attrs=primary", "primary"),
        ("postgresql://u@a:1/app", None),
    ],
)
def test_of_several_hosts_the_one_that_takes_writes_is_meant(url: str, attributes: str | None) -> None:
    found = load(environ={"RELAY_DATABASE_URL": url}).settings.require_database()
    assert conninfo_to_dict(found).get("target_session_attrs") == attributes


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RELAY_SLOT", "Upper"),
        ("RELAY_TOPIC_PARTITIONS", "many"),
        ("RELAY_TOPIC_PREFIX", "no spaces here"),
        ("RELAY_CONCURRENCY", "0"),
        ("RELAY_GRACE_S", "-1"),
        ("RELAY_DELIVERY", "often"),
        ("RELAY_LOG_LEVEL", "loud"),
        ("RELAY_METRICS_PORT", "99999"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(name: str, value: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(environ={name: value})
    assert name in caught.value.message
    assert "\n" not in caught.value.message


def test_an_unknown_name_in_the_file_is_wrong_and_in_the_environment_a_warning(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text("sloot = 1\n")
    with pytest.raises(UsageError, match=r"Did you mean slot \(RELAY_SLOT\)"):
        load(config=config, environ={})
    assert load(environ={"RELAY_SLOOT": "x"}).warnings == (
        "RELAY_SLOOT is set, and no such setting exists. Did you mean slot (RELAY_SLOT)?",
    )


@pytest.mark.parametrize("text", ["slot =", "\x00", 'slot = "\\q"'])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, text: str) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(text)
    with pytest.raises(UsageError, match=r"relay\.toml is not TOML"):
        load(config=config, environ={})


@pytest.mark.parametrize(
    "url", ["hunter2", "mysql://app:hunter2@db/app", "host=db password=hunter2 nonsense=1"]
)
def test_an_address_that_libpq_can_not_read_is_wrong_use_and_is_not_repeated(url: str) -> None:
    settings = load(environ={"RELAY_DATABASE_URL": url}).settings
    with pytest.raises(UsageError, match="RELAY_DATABASE_URL") as caught:
        settings.require_database()
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_what_is_not_set_says_how_it_is_set() -> None:
    settings = load(environ={}).settings
    with pytest.raises(UsageError, match="RELAY_DATABASE_URL is not set"):
        settings.require_database()
    with pytest.raises(UsageError, match="RELAY_KAFKA_BOOTSTRAP is not set"):
        settings.require_kafka()
