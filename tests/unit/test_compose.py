"""The compose file and the image use only commands and settings that exist, and stop nothing in mid-POST.

It parses and starts nothing: whether Docker can run it is not what is asked here.
"""

import re
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml

from consumers.providers.profiles_folder import load_profiles
from relay.cli import relay
from relay.settings import Settings, load

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE: Final[dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
DOCKERFILE: Final = (ROOT / "Dockerfile").read_text(encoding="utf-8")
OURS: Final = sorted(name for name, service in SERVICES.items() if service["image"] == "outbox-relay")
WORKERS: Final = ("relay", "dispatch", "collect", "deliver", "schedule")


def interpolated(value: object) -> str:
    """What Compose makes of ``${NAME:-default}`` where NAME is unset (its specification, Interpolation)."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value))


def environment(service: Mapping[str, Any]) -> dict[str, str]:
    return {name: interpolated(value) for name, value in service.get("environment", {}).items()}


def seconds(duration: str) -> float:
    """``1m30s`` → 90 (Compose specification, Specifying durations)."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    parts = re.findall(r"(\d+)(ms|h|m|s)", duration)
    assert "".join(number + unit for number, unit in parts) == duration, duration
    return sum(int(number) * units[unit] for number, unit in parts)


def check_command(arguments: list[str]) -> None:
    """Parse a command line as `relay` would, without running it. Raises click's UsageError."""
    context = click.Context(relay, info_name="relay")
    name, command, rest = relay.resolve_command(context, list(arguments))
    assert name is not None
    assert command is not None
    command.make_context(name, list(rest), parent=context)
    if name == "consume":
        assert rest[0] in entry_points(group="relay.consumers").names


def test_every_part_is_a_service_of_its_own() -> None:
    assert {"postgres", "kafka", "init", *WORKERS} <= set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_a_command_exists_with_its_options(name: str) -> None:
    check_command(SERVICES[name]["command"])


@pytest.mark.parametrize(
    "wrong", [["launch"], ["run", "--fast"], ["consume"], ["simulate-provider", "--port", "many"]]
)
def test_a_command_that_does_not_exist_is_found(wrong: list[str]) -> None:
    with pytest.raises(click.UsageError):
        check_command(wrong)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_with_a_right_value(name: str) -> None:
    loaded = load(environ=environment(SERVICES[name]))
    assert loaded.warnings == ()
    if name not in {"simulator"}:
        loaded.settings.require_database()
        loaded.settings.require_kafka()


def test_every_variable_of_the_image_is_a_setting_with_a_right_value() -> None:
    variables = dict(re.findall(r"\b(RELAY_\w+)=(\S+)", DOCKERFILE))
    assert variables
    assert load(environ=variables).warnings == ()


@pytest.mark.parametrize("name", WORKERS)
def test_workers_wait_for_init_which_waits_for_the_servers(name: str) -> None:
    assert SERVICES[name]["depends_on"]["init"]["condition"] == "service_completed_successfully"
    waits_for = SERVICES["init"]["depends_on"]
    assert {server: waits_for[server]["condition"] for server in waits_for} == {
        "postgres": "service_healthy",
        "kafka": "service_healthy",
    }
    assert SERVICES["init"]["restart"] == "no"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"init"}))
def test_what_runs_on_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_the_relays_health_is_progress_and_is_asked_where_it_is_served() -> None:
    service = SERVICES["relay"]
    port = environment(service)["RELAY_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/healthz" in service["healthcheck"]["test"][-1]
    assert seconds(service["healthcheck"]["timeout"]) < seconds(service["healthcheck"]["interval"])


def test_a_post_that_has_begun_is_never_killed_by_a_stop() -> None:
    shipped = load_profiles(()).values()
    longest = max(profile.submit.deadline_s + profile.margin_s for profile in shipped)
    grace = Settings.model_fields["grace_s"].default
    assert seconds(SERVICES["dispatch"]["stop_grace_period"]) > longest + grace


@pytest.mark.parametrize("name", WORKERS)
def test_work_in_flight_may_end_before_a_worker_is_killed(name: str) -> None:
    assert seconds(SERVICES[name]["stop_grace_period"]) > Settings.model_fields["grace_s"].default


def test_what_must_survive_a_container_is_on_a_declared_volume() -> None:
    mounts = {name: dict(_mounts(service)) for name, service in SERVICES.items()}
    image = dict(re.findall(r"\b(RELAY_(?:SPOOL|OUTPUTS_URL))=(\S+)", DOCKERFILE))
    assert image["RELAY_SPOOL"] in mounts["dispatch"].values()
    assert image["RELAY_OUTPUTS_URL"].removeprefix("file://") in mounts["deliver"].values()
    # The image of PostgreSQL 18 keeps its data in a folder per major version below this one.
    assert "/var/lib/postgresql" in mounts["postgres"].values()
    assert SERVICES["kafka"]["environment"]["KAFKA_LOG_DIRS"] in mounts["kafka"].values()
    assert {volume for found in mounts.values() for volume in found} == set(COMPOSE["volumes"])


def _mounts(service: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for mount in service.get("volumes", []):
        volume, _, target = mount.partition(":")
        yield volume, target


def test_postgres_writes_what_logical_decoding_reads() -> None:
    assert "wal_level=logical" in SERVICES["postgres"]["command"]
    assert SERVICES["postgres"]["image"] == "postgres:18"


def test_the_broker_is_the_one_that_the_tests_talk_to() -> None:
    pom = (ROOT / "tests/kafka/pom.xml").read_text(encoding="utf-8")
    tested = re.search(r"<kafka\.version>([^<]+)<", pom)
    assert tested is not None
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{tested.group(1)}"


def test_one_broker_can_hold_every_replica() -> None:
    settings = SERVICES["kafka"]["environment"]
    counts = {
        name: value for name, value in settings.items() if name.endswith(("REPLICATION_FACTOR", "MIN_ISR"))
    }
    assert len(counts) == 6
    assert set(counts.values()) == {"1"}
    assert settings["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_the_image_runs_relay_as_nobody_special_from_hashed_pins() -> None:
    assert 'ENTRYPOINT ["relay"]' in DOCKERFILE
    assert "--require-hashes --requirement requirements.lock" in DOCKERFILE
    assert re.search(r"^USER relay$", DOCKERFILE, re.MULTILINE)
