"""Structured logs on standard error, for people (`console`) or for machines (`json`). Row values never go in.

`configure` once per process; then `structlog.get_logger()` anywhere. Libraries that use `logging` come out in
the same form.
"""

import logging
import sys
from typing import Final, Literal

import structlog
from structlog.typing import Processor

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(
    log_format: Literal["console", "json"], level: Literal["debug", "info", "warning", "error"]
) -> None:
    """Set up structlog and logging. A second call replaces the first."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    rendered: list[Processor]
    if log_format == "json":
        rendered = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # The default formatter prints every local variable: payloads and credentials among them.
        plain = structlog.dev.plain_traceback
        rendered = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_of_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.basicConfig(handlers=[handler], level=_LEVELS[level], force=True)


def _name_of_library(
    _logger: logging.Logger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["library"] = record.name
    return event
