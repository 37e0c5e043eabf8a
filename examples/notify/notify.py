"""Says what became of each operation: a consumer of your own in ten lines."""

from consumers.runtime import Consumer, Context, Event


class Notify(Consumer):
    name = "notify"
    topics = ("operation.transitioned",)

    async def handle(self, event: Event, ctx: Context) -> None:
        phase = event.payload["to_phase"]
        if phase in {"succeeded", "failed", "uncertain"}:
            ctx.log.info("an operation has news", operation=event.key, phase=phase)
