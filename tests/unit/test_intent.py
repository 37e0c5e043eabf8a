"""What an application hands over as a payload arrives as it was approved, or is refused."""

from decimal import Decimal
from typing import Any

import pytest

from relay.outbox.intent import Intent


def written(payload: Any) -> Any:
    intent = Intent(
        kind="generation", owner_id="o", operation_key="k", payload=payload, provider="p", max_cost=1
    )
    return intent.arguments()[3]


def test_json_text_is_not_touched() -> None:
    assert written('{"a": 1.00}') == '{"a": 1.00}'


def test_a_decimal_keeps_its_digits() -> None:
    assert written({"a": [Decimal("12345678901234567890.10")]}) == '{"a":[12345678901234567890.10]}'


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"a": float("nan")}, "payload.a"),
        ({"a": [1, {"b": float("inf")}]}, "payload.a[1].b"),
        ([Decimal("NaN")], "payload[0]"),
        ({"a": (float("-inf"),)}, "payload.a[0]"),
    ],
)
def test_a_number_that_json_has_not_is_refused_and_named(payload: Any, where: str) -> None:
    with pytest.raises(ValueError, match="NaN or an infinity") as refused:
        written(payload)
    assert str(refused.value).startswith(f"{where} is ")
