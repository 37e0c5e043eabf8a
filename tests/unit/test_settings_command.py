"""`relay settings` lists every setting with its origin, and never shows a secret."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli import relay
from relay.settings import Settings

SECRETS = {
    "RELAY_DATABASE_URL": "postgresql://app:hunter2@db/app",
    "RELAY_KAFKA_SASL_PASSWORD": "hunter2",
    "RELAY_KAFKA_SSL_KEY_PEM": "hunter2",
    "RELAY_PROVIDER_GENACE_SECRET": "hunter2",
}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RELAY_"):
            monkeypatch.delenv(name)


def run(*arguments: str, **environment: str) -> str:
    result = CliRunner(env=environment).invoke(relay, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_every_setting_is_listed_with_its_origin(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text('slot = "from_file"\ntopic_prefix = "from-file"\n')
    environment = {"RELAY_TOPIC_PREFIX": "from-environment", "RELAY_KAFKA_BOOTSTRAP": "broker:9092"}
    arguments = ["--config", str(config), "--log-level", "debug", "settings", "--json"]
    rows = {row["name"]: row for row in json.loads(run(*arguments, **environment))}
    assert list(rows) == list(Settings.model_fields)
    assert (rows["slot"]["value"], rows["slot"]["origin"]) == ("from_file", "file")
    assert (rows["topic_prefix"]["value"], rows["topic_prefix"]["origin"]) == (
        "from-environment",
        "environment",
    )
    assert (rows["log_level"]["value"], rows["log_level"]["origin"]) == ("debug", "flag")
    assert rows["delivery"]["origin"] == "default"
    assert rows["kafka"]["value"] == {"bootstrap.servers": "broker:9092"}
    assert rows["grace_s"]["environment"] == "RELAY_GRACE_S"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_no_form_shows_a_secret(form: list[str]) -> None:
    shown = run("settings", *form, **SECRETS)
    assert "hunter2" not in shown
    assert "**********" in shown
