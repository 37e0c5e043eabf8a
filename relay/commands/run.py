"""`relay run`: committed outbox rows to Kafka, until it is told to stop."""

from typing import Final

import click

from relay.cli import loaded

EXIT_STATUSES: Final = """\b
Exit status:
   0  stopped cleanly: what was read is in Kafka and confirmed
   1  failed
   2  wrong use: a setting, an argument or a file
  10  checkpoint missing, or behind the slot
  11  another Postgres cluster
  12  phantom events: a promotion lost transactions that Kafka has
  13  rewound: the database was restored or is behind Kafka
  14  slot or WAL lost
  15  publication or outbox narrowed or altered
  16  stream incomplete: Postgres skipped rows
  17  topics changed
  18  checkpoint unreadable
  19  fenced by another relay
  20  a repair is under way
  21  synchronous_standby_names matches the relay
  22  a bad event, with on_bad_event = halt
"""


@click.command("run", epilog=EXIT_STATUSES)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Publish the outbox to Kafka until SIGTERM.

    One relay publishes per slot; a second one waits as a standby and takes over when the first is gone. When
    something is wrong with the source, the relay stops with a status of its own instead of skipping anything.
    """
    settings = loaded(ctx).settings

    from structlog import get_logger

    from relay import logs, metrics, pipeline
    from relay.avro.catalog import Catalog
    from relay.exposition import serve
    from relay.health import Health
    from relay.measuring import Measuring
    from relay.outbox.mapping import of_settings
    from relay.waking import Stopping, Waker

    logs.configure(settings.log_format, settings.log_level)
    mapping = of_settings(settings)
    catalog = Catalog.load(settings.schemas)
    if mapping.lacks is not None:
        get_logger("relay").warning("not everything is possible with this outbox", reason=mapping.lacks)
    settings.require_database()
    settings.require_kafka()
    health = Health(settings.unhealthy_after_s)
    metrics.of_health(health)
    serve(settings.metrics_port, health.report)
    if settings.metrics_port:
        Measuring(settings, mapping, health).start()
    waker = Waker()
    stopping = Stopping(waker)
    stopping.on_signals()
    pipeline.run(settings, mapping, catalog, stopping, waker, health)
