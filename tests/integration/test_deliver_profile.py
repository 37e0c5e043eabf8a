"""What a profile forbade may be mended in the profile: files are fetched by the one of today, so that a job
that was paid for is not lost to the profile of the day on which it was approved.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.operations import providers
from consumers.providers.profile import Profile
from fix_commands import Command
from fix_operations import OPERATOR
from fix_postgres import Database
from fix_scene import Scene

STRICTER = {
    "output_forbidden": ("allowed_origins: [self]", "allowed_origins: []"),
    "output_too_large": ("output_bytes: 67108864", "output_bytes: 16"),
}


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        yield running


def delivered(scene: Scene, delivery: UUID) -> str:
    asyncio.run(scene.handle(Deliver(), scene.last(delivery, "delivery.requested")))
    return scene.phase(delivery)


@pytest.mark.parametrize("reason", STRICTER)
def test_a_delivery_that_the_profile_forbade_is_stored_after_the_profile_is_mended(
    scene: Scene, command: Command, reason: str
) -> None:
    text = scene.profile.text
    assert STRICTER[reason][0] in text
    stricter = Profile.parse(text.replace(*STRICTER[reason]), source="stricter")
    providers.push(scene.connection, [stricter])
    operation = asyncio.run(scene.accepted())
    asyncio.run(scene.handle(Collect(), scene.last(operation, "collection.requested")))
    delivery = scene.delivery_of(operation)
    assert delivered(scene, delivery) == "held"
    assert scene.operation(delivery, "phase_reason") == reason

    env = scene.environment | {"RELAY_DATABASE_URL": scene.database.url_as(OPERATOR)}
    shown = command("review", "show", str(delivery), env=env).out
    assert "by the provider's profile as it is now" in shown
    providers.push(scene.connection, [scene.profile])
    (release,) = re.findall(r"relay (review resolve \S+ release --revision \d+) --reason", shown)
    assert command(*release.split(), "--reason", "the profile is mended", env=env).status == 0
    assert delivered(scene, delivery) == "stored"
    assert scene.operation(operation, "profile_digest") == stricter.digest
