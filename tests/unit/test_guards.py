"""The list of guards stays true: each text is there once, and each test that must fail exists."""

import re

import pytest

import guards

LISTED = guards.load()


def test_each_guard_has_a_name_of_its_own() -> None:
    names = [guard.name for guard in LISTED]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("guard", LISTED, ids=lambda guard: guard.name)
def test_a_guards_text_is_there_once_and_its_test_exists(guard: guards.Guard) -> None:
    assert (guards.ROOT / guard.file).read_text(encoding="utf-8").count(guard.removed) == 1
    file, _, name = guard.test.partition("::")
    text = (guards.ROOT / file).read_text(encoding="utf-8")
    function = name.partition("[")[0]
    assert not name or re.search(rf"^(async )?def {re.escape(function)}\(", text, re.MULTILINE)
