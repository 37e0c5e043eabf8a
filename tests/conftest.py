"""What every test may ask for. The fixtures are plugins, one concern each; this file only names them."""

import pytest
from hypothesis import settings

# A loaded machine is no fault of the code: an example may take as long as it takes.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

pytest_plugins = (
    "fix_versions",
    "fix_postgres",
    "fix_kafka",
    "fix_kafka_cluster",
    "fix_proxy",
    "fix_process",
    "fix_operations",
    "fix_reviews",
    "fix_commands",
    "fix_doctor",
    "fix_consumer",
    "fix_dispatch",
    "fix_late",
    "fix_relay",
    "fix_standby",
    "fix_system",
    "fix_s3",
    "fix_restore",
    "fix_namespaces",
)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Coroutine tests (`@pytest.mark.anyio`) run on asyncio: psycopg and httpx are used there alone."""
    return "asyncio"
