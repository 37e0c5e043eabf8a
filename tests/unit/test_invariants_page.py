"""`docs/invariants.md` names guards that exist, for every invariant that is checked."""

import re
import tomllib
from pathlib import Path
from typing import Final

from consumers.observe.invariants import INVARIANTS

ROOT: Final = Path(__file__).resolve().parents[2]
_ROW: Final = re.compile(r"^\| (\w+) \| .* \| (.*) \|$", re.MULTILINE)


def test_each_invariant_names_guards_that_exist() -> None:
    page = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    known = {guard["name"] for guard in tomllib.loads((ROOT / "tests" / "guards.toml").read_text())["guard"]}
    rows = dict(_ROW.findall(page))

    assert list(rows) == [*map(str, range(1, len(INVARIANTS) + 1)), "P7"]
    for number, named in rows.items():
        guards = re.findall(r"`([a-z0-9-]+)`", named)
        assert guards, number
        assert not set(guards) - known, (number, set(guards) - known)
