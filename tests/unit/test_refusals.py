"""Every refusal of the database's own has a sentence that says what it means and what to do."""

import re

import psycopg
import pytest

from consumers.operations.decisions import Refused
from consumers.operations.refusals import KNOWN, RULES, in_words, sentence
from relay.contracts import POSTGRES
from relay.errors import Unavailable


def test_each_sqlstate_that_the_migrations_raise_is_known() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in POSTGRES.glob("*.sql"))
    raised = set(re.findall(r"errcode = '(OR\d{3})'", text))
    assert len(raised) > 5
    assert raised <= set(KNOWN)
    assert all(meaning.endswith(".") and remedy for meaning, remedy in KNOWN.values())


def test_a_refusal_is_said_in_one_sentence() -> None:
    with pytest.raises(Refused) as refused, in_words():
        raise psycopg.errors.InsufficientPrivilege("permission denied for table review")
    assert refused.value.message == "Permission denied for table review."
    assert "relay_operator" in refused.value.remedy


def test_every_rule_that_is_put_in_words_is_one_of_the_migrations() -> None:
    """Postgres names an unnamed check after its table and column."""
    text = "".join(path.read_text(encoding="utf-8") for path in POSTGRES.glob("*.sql"))
    for rule in RULES:
        table = next((one for one in ("incident_decision", "remote_job") if rule.startswith(one)), "")
        table = table or rule.partition("_")[0]
        column = rule.removeprefix(f"{table}_").removesuffix("_check")
        found = re.search(rf"create table relay\.{table} \((.*?)\n\);", text, re.DOTALL)
        assert found is not None
        assert f"constraint {rule} " in found[1] or re.search(rf"\n  {column} .*check \(", found[1]), rule


def test_a_server_that_is_away_is_not_a_refusal() -> None:
    assert isinstance(sentence(psycopg.OperationalError("connection refused")), Unavailable)


def test_a_fault_of_ours_stays_a_fault() -> None:
    with pytest.raises(psycopg.errors.SyntaxError), in_words():
        raise psycopg.errors.SyntaxError("syntax error at or near nothing")
