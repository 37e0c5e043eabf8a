"""How long-lived processes connect to Postgres: a server that vanished is noticed within half a minute.

By itself TCP gives up what was sent after a quarter of an hour, and misses a silent peer after two hours: an
answer that says that a job was made would wait so long. It opens nothing.
"""

from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

# PostgreSQL 18, 32.1.2: seconds, and tcp_user_timeout in milliseconds.
_PATIENCE: Final[dict[str, str | int | None]] = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}


def patient_conninfo(url: str, application_name: str) -> str:
    """`url` (libpq's URL or keywords) with what it doesn't say itself."""
    return make_conninfo("", **({"application_name": application_name} | _PATIENCE | conninfo_to_dict(url)))
