"""Every setting: its name, unit, default and environment variable. It opens nothing and connects to nothing.

A TOML file (``--config`` or ``RELAY_CONFIG``), then the environment (``RELAY_…``), then flags; a later one
wins. A wrong value, or an unknown name in the file, stops at start with one sentence that names it. An
unknown ``RELAY_…`` variable only warns: Kubernetes injects ``RELAY_PORT`` beside a service named ``relay``.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from relay.errors import UsageError

ENV_PREFIX: Final = "RELAY_"
# Read by relay.failpoints and relay.cli, before there are settings.
_NOT_SETTINGS: Final = frozenset({"RELAY_CONFIG", "RELAY_FAILPOINTS", "RELAY_ALLOW_FAILPOINTS"})
SECRET_KAFKA_WORDS: Final = ("password", "secret", "key.pem", "oauth", "credentials")

MIB: Final = 1024 * 1024


def _paths(value: object) -> object:
    """``a:b`` (the platform's path separator) or a list."""
    if isinstance(value, str):
        return [part for part in value.split(os.pathsep) if part]
    return value


Paths = Annotated[tuple[Path, ...], BeforeValidator(_paths)]


def _listed(value: object) -> object:
    """``a,b`` or a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


Listed = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class ProviderSettings(BaseModel):
    """Where a profile's provider is, and its credential by value or by file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = None
    secret: SecretStr | None = None
    secret_file: Path | None = None
    webhook_secret: SecretStr | None = None
    webhook_secret_file: Path | None = None


class Settings(BaseModel):
    """All settings of all commands. Times are seconds (`_s`), sizes bytes (`_bytes`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # Postgres
    database_url: SecretStr = Field(
        SecretStr(""), description="libpq URL or keywords of the database, several hosts allowed"
    )
    slot: str = Field("outbox_relay", pattern=r"^[a-z0-9_]{1,63}$", description="logical replication slot")
    publication: str = Field("outbox_relay", min_length=1, max_length=63, description="publication")
    outbox_table: str = Field("relay.outbox", min_length=1, description="the outbox, schema.table")
    outbox_columns: str = Field(
        "native", description="native, debezium, or a JSON object of our column names to yours"
    )
    outbox_source: Literal["table", "message"] = Field("table", description="table, or logical messages")
    outbox_rows: Literal["kept", "deleted"] | None = Field(
        None, description="whether rows stay in the outbox; default kept for native, deleted for debezium"
    )

    sender_timeout_s: float = Field(
        10.0, ge=1, le=600, description="after so long without a word from the relay Postgres frees its slot"
    )

    # Kafka
    kafka: dict[str, str] = Field(
        default_factory=dict, description="librdkafka properties: RELAY_KAFKA_BOOTSTRAP, RELAY_KAFKA_…"
    )
    topic_prefix: str = Field(
        "relay", pattern=r"^[A-Za-z0-9._-]{1,100}$", description="prefix of every topic"
    )
    topic: str | None = Field(
        None, pattern=r"^[A-Za-z0-9._-]{1,249}$", description="one topic for every event"
    )
    topic_partitions: int = Field(
        6, ge=1, le=10_000, description="partitions of topics that the relay creates"
    )
    topic_replication: int = Field(
        -1, ge=-1, description="replication factor of topics that the relay creates; -1: the broker's default"
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        "exactly_once", description="exactly_once for read_committed readers, or at_least_once"
    )
    queue_bytes: int = Field(
        16 * MIB, ge=MIB, description="most that the relay holds of what Kafka hasn't taken"
    )
    group_bytes: int = Field(4 * MIB, ge=64 * 1024, description="a Kafka transaction is closed at this size")
    on_bad_event: Literal["park", "park_key", "halt"] = Field(
        "park",
        description="what becomes of an event that can't be sent: park it; park_key: its key's later events"
        " wait behind it; halt: stop",
    )

    # Schemas
    framing: Literal["single_object"] = Field("single_object", description="how Avro bytes are framed")
    registry_url: str | None = Field(None, description="schema registry, for confluent framing")
    schemas: Paths = Field((), description="more folders of Avro schemas, after the shipped one")

    # Consumers
    concurrency: int = Field(16, ge=1, le=1_000, description="handlers at work in one consumer process")
    grace_s: float = Field(
        45.0, gt=0, description="how long work in flight may go on after SIGTERM or a revoke"
    )
    retry_for_s: float = Field(
        900.0, ge=0, description="how long a transient failure is retried before parking"
    )

    # Operations
    profiles: Paths = Field((), description="more folders of provider profiles, after the shipped one")
    providers: dict[str, ProviderSettings] = Field(
        default_factory=dict,
        description="RELAY_PROVIDER_<NAME>_URL, …_SECRET, …_SECRET_FILE, …_WEBHOOK_SECRET, …",
    )
    outputs_url: str = Field("", description="where files are delivered: file:///… or s3://bucket/prefix")
    payload_sources: Listed = Field(
        (), description="where payloads may be read from by reference: file:///…, s3://…, https://…"
    )
    spool: Path = Field(Path("spool"), description="folder of the dispatcher's spool; a volume that survives")
    claim_lease_s: float = Field(60.0, gt=0, description="lease of a claim before anything is sent")
    schedule_every_s: float = Field(1.0, gt=0, description="how often schedule looks for what is due")
    polls_per_s: float = Field(
        500.0, gt=0, description="most jobs that one schedule process asks for in a second"
    )
    reemit_after_s: float = Field(60.0, gt=0, description="an operation that stays prepared is emitted again")

    webhooks_host: str = Field("127.0.0.1", description="address at which webhooks are received")
    webhooks_port: int = Field(9480, ge=0, le=65535, description="its port; 0: any free one, which is logged")

    # Observation
    log_format: Literal["console", "json"] = Field("console", description="log format")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")
    metrics_port: int = Field(
        0, ge=0, le=65535, description="port of /metrics, and on a relay of /healthz and /readyz; 0 = off"
    )
    unhealthy_after_s: float = Field(
        60.0, ge=2, description="without progress for so long, a relay with something to do is unhealthy"
    )

    @model_validator(mode="after")
    def _check(self) -> "Settings":
        if self.registry_url is not None:
            raise ValueError("registry_url needs framing = confluent, which this release doesn't have")
        return self

    def require_database(self) -> str:
        """The libpq connection string. Raises UsageError when it isn't set, or is none.

        Of several hosts the one that takes writes is meant: nothing of ours works on a standby.
        """
        url = self.database_url.get_secret_value()
        if not url:
            raise UsageError(
                "RELAY_DATABASE_URL is not set: there is no database to talk to.",
                remedy="Set it to a libpq URL, for example postgresql://user@host/app.",
            )
        # Here, because a command that needs no database shouldn't pay for libpq.
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        try:
            given = conninfo_to_dict(url)
        except ProgrammingError:
            # libpq's own words repeat what it couldn't read, which may be the password.
            raise UsageError(
                "RELAY_DATABASE_URL (or --database-url) is neither a libpq URL nor keywords of libpq.",
                remedy="Write postgresql://user:password@host:5432/app, special characters in the password"
                " percent-encoded, or host=… dbname=….",
            ) from None
        hosts = f"{given.get('host') or ''}{given.get('hostaddr') or ''}"
        if "," in hosts and not given.get("target_session_attrs"):
            return make_conninfo(url, target_session_attrs="read-write")
        return url

    def webhook_secrets(self, provider: str) -> tuple[str, ...]:
        """The secrets that may sign webhooks of `provider`: several while they are rotated, with white space
        between. Raises UsageError when a file can't be read."""
        configured = self.providers.get(provider)
        if configured is None:
            return ()
        text = configured.webhook_secret.get_secret_value() if configured.webhook_secret else ""
        if configured.webhook_secret_file is not None:
            try:
                text = f"{text} {configured.webhook_secret_file.read_text(encoding='utf-8')}"
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"{configured.webhook_secret_file} can't be read: {error}.") from None
        return tuple(text.split())

    def require_kafka(self) -> dict[str, str]:
        """librdkafka properties with ``bootstrap.servers``. Raises UsageError when the brokers aren't set."""
        if "bootstrap.servers" not in self.kafka:
            raise UsageError(
                "RELAY_KAFKA_BOOTSTRAP is not set: there is no Kafka to talk to.",
                remedy="Set it to host:port, several with commas.",
            )
        return dict(self.kafka)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings with where each came from: name to ``default``, ``file``, ``environment`` or ``flag``."""

    settings: Settings
    origins: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())


def environment_name(setting: str) -> str:
    """``database_url`` → ``RELAY_DATABASE_URL``."""
    return ENV_PREFIX + setting.upper()


def load(
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Merge file, environment and flags. Raises UsageError with one sentence for the first thing wrong."""
    config = config or (Path(environ["RELAY_CONFIG"]) if environ.get("RELAY_CONFIG") else None)
    warnings: list[str] = []
    layers = [
        ("file", _from_file(config) if config else {}),
        ("environment", _from_environment(environ, warnings)),
        ("flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ]
    merged: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.model_fields, "default")
    for origin, layer in layers:
        for name, value in layer.items():
            if isinstance(value, dict):
                merged[name] = _merge(merged.get(name, {}), value)
            else:
                merged[name] = value
            origins[name] = origin
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise _one_sentence(error, origins, config) from None
    return Loaded(settings, origins, tuple(warnings))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for name, value in over.items():
        nested = isinstance(value, dict) and isinstance(merged.get(name), dict)
        merged[name] = _merge(merged[name], value) if nested else value
    return merged


def _kafka_property(name: str) -> str:
    dotted = name.lower().replace("_", ".")
    return "bootstrap.servers" if dotted in {"bootstrap", "bootstrap.servers"} else dotted


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"The settings file {path} can't be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The settings file {path} is not TOML: {error}.") from None
    for name in document:
        if name not in Settings.model_fields:
            raise UsageError(
                f"The settings file {path} has {name!r}, which is not a setting.{_nearest(name)}"
            )
    kafka = document.get("kafka")
    if isinstance(kafka, dict):
        document["kafka"] = {_kafka_property(name): _text(value) for name, value in _flat(kafka)}
    return document


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict):
            pairs += _flat(value, f"{prefix}{name}.")
        else:
            pairs.append((f"{prefix}{name}", value))
    return pairs


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    layer: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    providers: dict[str, dict[str, str]] = {}
    for name, value in sorted(environ.items()):
        if not name.startswith(ENV_PREFIX) or name in _NOT_SETTINGS:
            continue
        setting = name.removeprefix(ENV_PREFIX).lower()
        if setting.startswith("kafka_"):
            kafka[_kafka_property(setting.removeprefix("kafka_"))] = value
        elif setting.startswith("provider_") and (
            found := _provider_field(setting.removeprefix("provider_"))
        ):
            providers.setdefault(found[0], {})[found[1]] = value
        elif setting in Settings.model_fields and setting not in {"kafka", "providers"}:
            layer[setting] = value
        else:
            warnings.append(f"{name} is set, and no such setting exists.{_nearest(setting)}")
    if kafka:
        layer["kafka"] = kafka
    if providers:
        layer["providers"] = providers
    return layer


def _provider_field(rest: str) -> tuple[str, str] | None:
    for suffix in ("webhook_secret_file", "webhook_secret", "secret_file", "secret", "url"):
        if rest.endswith("_" + suffix):
            return rest.removesuffix("_" + suffix).replace("_", "-"), suffix
    return None


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    return (
        f" Did you mean {near[0]} ({environment_name(near[0])})?"
        if near
        else " `relay settings` lists them all."
    )


def _one_sentence(error: ValidationError, origins: Mapping[str, str], config: Path | None) -> UsageError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    if not where:
        return UsageError(f"The settings don't fit together: {reason}.")
    setting = str(first["loc"][0])
    origin = origins.get(setting, "default")
    said_in = {"file": f"in {config}", "environment": f"as {environment_name(setting)}", "flag": "as a flag"}
    return UsageError(f"The setting {where} ({said_in.get(origin, origin)}) is wrong: {reason}.")


def masked(settings: Settings) -> dict[str, object]:
    """Setting name to a printable value; secrets show as ``**********``."""
    shown = settings.model_dump(mode="json")
    shown["kafka"] = {
        name: "**********" if any(word in name for word in SECRET_KAFKA_WORDS) else value
        for name, value in settings.kafka.items()
    }
    return shown
