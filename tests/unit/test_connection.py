"""A server that vanished is noticed long before TCP would give up, unless somebody chose otherwise."""

from psycopg.conninfo import conninfo_to_dict

from consumers.connection import patient_conninfo


def test_silence_of_the_server_ends_within_half_a_minute() -> None:
    said = conninfo_to_dict(patient_conninfo("postgresql://ann@db.example/studio", "relay schedule"))
    idle_s, interval_s, count, user_timeout_ms = (
        int(str(said[name]))
        for name in ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
    )
    assert max((idle_s + interval_s * count) * 1000, user_timeout_ms) <= 30_000
    assert (said["host"], said["application_name"]) == ("db.example", "relay schedule")


def test_what_the_url_says_is_kept() -> None:
    url = "postgresql://ann@db.example/studio?tcp_user_timeout=1000&application_name=mine"
    said = conninfo_to_dict(patient_conninfo(url, "relay schedule"))
    assert (said["tcp_user_timeout"], said["application_name"]) == ("1000", "mine")
