"""What every command for people shares: one connection, refusals as sentences, and who it is that asks."""

import asyncio
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

import click
import msgspec
import psycopg

from consumers.operations.refusals import in_words
from relay.cli import loaded
from relay.settings import Settings

Result = TypeVar("Result")
Work = Callable[[psycopg.AsyncConnection[Any], Settings], Awaitable[Result]]


def with_database(ctx: click.Context, work: Work[Result]) -> Result:
    """Run `work` on one connection in autocommit. Raises Refused, Unavailable or UsageError as sentences."""
    settings = loaded(ctx).settings
    url = settings.require_database()

    async def run() -> Result:
        with in_words():
            connection = await psycopg.AsyncConnection.connect(
                url, autocommit=True, application_name=f"outbox-relay {ctx.info_name}"
            )
            async with connection:
                return await work(connection, settings)

    return asyncio.run(run())


def say_json(value: object) -> None:
    """`value` as indented JSON: ids and times as text, amounts as text so that no digit is lost."""
    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


AMOUNT_LIMIT: Final = Decimal(10) ** 14
AMOUNT_STEP: Final = Decimal("0.000001")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class Id(click.ParamType[UUID]):
    """A UUID."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID:
        if isinstance(value, UUID):
            return value
        try:
            return UUID(str(value))
        except ValueError:
            self.fail(f"{value!r} is not an id (a UUID).", param, ctx)


class Amount(click.ParamType[Decimal]):
    """A number of a unit, as `numeric(20, 6)` holds it."""

    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            amount = Decimal(str(value))
        except ArithmeticError:
            self.fail(f"{value!r} is not an amount.", param, ctx)
        fits = amount.is_finite() and 0 <= amount < AMOUNT_LIMIT and amount == amount.quantize(AMOUNT_STEP)
        if not fits:
            self.fail(
                f"{value!r} is not an amount: zero or more, with at most fourteen digits before the point and"
                " six after it.",
                param,
                ctx,
            )
        return amount
