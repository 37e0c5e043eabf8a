"""Every test that `docs/guarantees.md` names exists: a name that no test has would be a promise of air."""

import ast
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "guarantees.md"
_NAMED: Final = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`|`(test_\w+)`")


def named(text: str) -> list[tuple[str | None, str | None]]:
    """File and function of each test that the page names; a bare function's file is None."""
    return [(file or None, function or bare or None) for file, function, bare in _NAMED.findall(text)]


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def missing(text: str, files: dict[str, set[str]]) -> list[str]:
    """The named tests that don't exist."""
    everywhere = set().union(*files.values())
    absent = []
    for file, function in named(text):
        known = everywhere if file is None else files.get(file)
        if known is None or (function is not None and function not in known):
            absent.append(f"{file or ''}::{function or ''}")
    return absent


def known_tests() -> dict[str, set[str]]:
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    return {path.relative_to(ROOT).as_posix(): functions(path) for path in found}


def rows() -> list[str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|") and not line.startswith(("|---", "| failure |"))]


def test_every_test_that_the_guarantees_name_exists() -> None:
    assert missing(PAGE.read_text(encoding="utf-8"), known_tests()) == []


def test_every_guarantee_names_a_test() -> None:
    assert [row for row in rows() if not named(row)] == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = known_tests()
    assert missing("`tests/unit/test_guarantees.py::test_of_nothing`", here)
    assert missing("`tests/unit/test_air.py`", here)
    assert missing("`test_that_nobody_wrote`", here)
    assert not missing("`tests/unit/test_guarantees.py::test_a_test_that_does_not_exist_is_noticed`", here)
