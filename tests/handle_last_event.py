"""A child process for tests: hand a consumer the newest event of an operation, as `relay consume` would.

``python handle_last_event.py collect OPERATION_ID`` with RELAY_… in the environment. Failpoints work, so that
a test may kill it anywhere.
"""

import asyncio
import sys
from uuid import UUID

import psycopg

from consumers.runtime.discovery import find
from fix_scene import context, events
from relay import failpoints
from relay.settings import load


async def main(name: str, operation_id: UUID) -> None:
    settings = load().settings
    consumer = find(name)()
    with psycopg.connect(settings.require_database(), autocommit=True) as connection:
        event = events(connection, operation_id, consumer.topics[0])[-1]
    async with context(settings) as ctx:
        await consumer.open(ctx)
        await consumer.handle(event, ctx)
        await consumer.close()


if __name__ == "__main__":
    failpoints.arm()
    asyncio.run(main(sys.argv[1], UUID(sys.argv[2])))
    sys.stdout.write("handled\n")
