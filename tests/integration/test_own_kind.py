"""An application registers a kind of operation of its own in a migration, and it works: guards, events,
schema, dispatcher, collection and delivery. Lifecycles are data, so one of its own works too.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

import pytest

from consumers.collect import Collect
from consumers.deliver import Deliver
from consumers.dispatch import Dispatch
from fix_operations import WORKER, Stage
from fix_postgres import Database
from fix_scene import OWNER, UNIT, Scene
from relay.avro.catalog import Catalog
from relay.contracts import AVRO
from relay.outbox.intent import Intent, prepare

pytestmark = pytest.mark.anyio

MIGRATION: Final = """
    insert into relay.operation_kind (kind, lifecycle, event_type, event_version)
    values ('upscale', 'generation', 'upscale.requested', 1)
"""
LIFECYCLE: Final = """
    insert into relay.lifecycle_phase (lifecycle, phase, is_final) values
      ('errand', 'prepared', false), ('errand', 'claimed', false), ('errand', 'done', true),
      ('errand', 'cancelled', true);
    insert into relay.lifecycle_edge (lifecycle, from_phase, to_phase, cause) values
      ('errand', '', 'prepared', 'requested'), ('errand', 'prepared', 'claimed', 'claim'),
      ('errand', 'claimed', 'prepared', 'lease_expired'), ('errand', 'claimed', 'done', 'observation'),
      ('errand', 'prepared', 'cancelled', 'cancel');
    insert into relay.operation_kind (kind, lifecycle, event_type, event_version)
    values ('errand', 'errand', 'errand.requested', 1);
"""
NO_EDGE: Final = "OR011"


class Upscale(Dispatch):
    """A dispatcher for it alone: another topic, another group."""

    name = "upscale"
    topics = ("upscale.requested",)


@pytest.fixture
def scene(database: Database, tmp_path: Path) -> Iterator[Scene]:
    with Scene(database, tmp_path) as running:
        running.connection.execute(MIGRATION)
        yield running


async def test_a_kind_of_the_applications_own_goes_its_whole_way(scene: Scene, tmp_path: Path) -> None:
    intent = Intent("upscale", OWNER, "frame-1", {"prompt": "larger"}, "simulator", Decimal(2), UNIT)
    operation = prepare(scene.connection, intent).operation_id
    event = scene.last(operation, "upscale.requested")

    await scene.handle(Upscale(), event)
    await scene.handle(Collect(), scene.last(operation, "collection.requested"))
    delivery = scene.delivery_of(operation)
    await scene.handle(Deliver(), scene.last(delivery, "delivery.requested"))

    assert scene.phase(operation) == "succeeded"
    assert scene.phase(delivery) == "stored"
    assert [post["reference"] for post in scene.simulator.truth()["posts"]] == [str(operation)]
    # Its event needs a schema of its own, in a folder that RELAY_SCHEMAS names.
    catalog = Catalog.load([_own_schemas(tmp_path)])
    written = json.dumps(event.payload, default=str).encode()
    framed = catalog.encoder(event.type, event.schema_version)(written)
    assert catalog.decode(framed).value["operation_id"] == operation


async def test_its_events_are_written_by_its_transitions_alone(scene: Scene) -> None:
    scene.database.url_as("relay_app")
    with (
        scene.database.connect(scene.database.url_as("relay_app")) as application,
        pytest.raises(Exception, match="written by the transitions of operations alone"),
    ):
        application.execute(
            "insert into relay.outbox (event_type, schema_version, operation_id, version, payload)"
            " values ('upscale.requested', 1, gen_random_uuid(), 1, '{}')"
        )


def test_a_lifecycle_of_the_applications_own_is_held_to_its_edges(stage: Stage) -> None:
    stage.connection.execute(LIFECYCLE)
    operation: UUID = stage.one(
        "select operation_id from relay.prepare_operation(kind => 'errand', owner_id => 'studio',"
        " operation_key => 'e-1', payload => '{}', provider => 'simulator', max_cost => 0)"
    )
    with stage.acting(WORKER):
        stage.say("claim")
        assert stage.move_refused(operation, "done") == NO_EDGE
        token = uuid4()
        columns = {"claim_token": token, "claimed_by": "w", "lease_expires_at": stage.lease()}
        assert stage.move(operation, "claimed", "mine", **columns) == 1
        stage.say("observation", attempt=stage.observed(operation))
        assert stage.move(operation, "done", "done") == 1
        stage.say("cancel")
        assert stage.move_refused(operation, "cancelled") == NO_EDGE
    assert stage.one("select is_final from relay.operation where operation_id = %s", operation)
    written = stage.connection.execute(
        "select event_type from relay.outbox where operation_id = %s order by seq", [operation]
    ).fetchall()
    assert [kind for (kind,) in written].count("errand.requested") == 1
    assert [kind for (kind,) in written].count("operation.transitioned") == 3


def _own_schemas(folder: Path) -> Path:
    shipped = json.loads((AVRO / "generation.requested" / "v2.avsc").read_text(encoding="utf-8"))
    own = folder / "schemas" / "upscale.requested" / "v1.avsc"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(shipped | {"name": "UpscaleRequested"}), encoding="utf-8")
    return folder / "schemas"
