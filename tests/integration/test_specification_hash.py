"""The specification hash is the same in Python and in SQL, over the stored text's bytes, whatever they be."""

from decimal import Decimal
from typing import Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from consumers.operations.specification import specification_hash
from fix_operations import Stage

# Postgres' text takes every character but NUL; surrogates are no characters.
_TEXT: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_AMOUNTS: Final = st.decimals(min_value=0, max_value=Decimal("99999999999999"), places=6)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=_TEXT,
    provider=st.none() | _TEXT,
    digest=st.none() | _TEXT,
    version=st.integers(1, 2**31 - 1),
    amount=_AMOUNTS | st.decimals(0, 10**13, places=2) | st.integers(0, 10**13).map(Decimal),
    unit=_TEXT,
    payload=_TEXT,
)
def test_python_and_postgres_hash_the_same_specification(
    stage: Stage,
    kind: str,
    provider: str | None,
    digest: str | None,
    version: int,
    amount: Decimal,
    unit: str,
    payload: str,
) -> None:
    in_postgres = stage.one(
        "select relay.specification_hash(%s, %s, %s, %s, %s, %s, %s)",
        kind,
        provider,
        digest,
        version,
        amount,
        unit,
        payload,
    )
    in_python = specification_hash(
        kind=kind,
        provider=provider,
        profile_digest=digest,
        payload_version=version,
        max_cost=amount,
        cost_unit=unit,
        payload=payload,
    )
    assert in_python == in_postgres


def test_fields_can_not_run_into_each_other(stage: Stage) -> None:
    hashes = {
        stage.one("select relay.specification_hash(%s, %s, %s, 1, 1, 'credit', '{}')", *fields)
        for fields in (
            ("ab", "c", "d"),
            ("a", "bc", "d"),
            ("a", "b", "cd"),
            ("abc", "", "d"),
            ("abc", None, "d"),
        )
    }
    assert len(hashes) == 5


def test_an_amount_is_hashed_by_its_value_and_not_by_how_it_is_written(stage: Stage) -> None:
    for written in ("10", "10.0", "10.000000", "1e1", "010"):
        amount = Decimal(written)
        assert specification_hash(
            kind="k",
            provider=None,
            profile_digest=None,
            payload_version=1,
            max_cost=amount,
            cost_unit="c",
            payload="",
        ) == stage.one("select relay.specification_hash('k', null, null, 1, 10, 'c', '')")
