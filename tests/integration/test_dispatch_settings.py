"""What a dispatcher's own settings lack is no operation's fault: nothing is claimed, nothing is held."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumers.dispatch import Dispatch
from fix_dispatch import Dispatching
from relay.errors import Unavailable

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "settings",
    [
        {"url": None},
        {"url": "not a url"},
        {"secret_file": Path("/nowhere/secret")},
    ],
    ids=["no URL", "no URL at all", "no credential"],
)
async def test_a_process_that_could_not_send_claims_nothing_and_says_what_to_set(
    dispatching: Dispatching, settings: dict[str, Any]
) -> None:
    operation = dispatching.prepared()
    context = dispatching.own_context()
    known = context.settings.providers["simulator"]
    wrong = context.settings.model_copy(
        update={"providers": {"simulator": known.model_copy(update=settings)}}
    )
    dispatcher = Dispatch()
    context = replace(context, settings=wrong)
    await dispatcher.open(context)
    with pytest.raises(Unavailable, match=r"RELAY_PROVIDER_SIMULATOR_") as caught:
        await dispatcher.handle(dispatching.events(operation, "generation.requested")[-1], context)
    assert caught.value.meaning == "Nothing was claimed."
    assert dispatching.row(operation, "phase, version, open_reviews") == ("prepared", 1, 0)


async def test_an_old_event_of_a_provider_that_is_gone_asks_for_nothing(dispatching: Dispatching) -> None:
    operation = dispatching.prepared()
    dispatcher = await dispatching.dispatcher()
    await dispatching.hand_over(dispatcher, operation)
    context = dispatching.own_context()
    context = replace(context, settings=context.settings.model_copy(update={"providers": {}}))
    replaying = Dispatch()
    await replaying.open(context)
    await replaying.handle(dispatching.events(operation, "generation.requested")[-1], context)
    assert dispatching.posts(operation) == 1
