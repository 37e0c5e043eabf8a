"""Names that lead to private addresses, or change where they lead: a real name server, real addresses."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from fix_namespaces import namespaced

SCENE: Final = Path(__file__).resolve().parents[1] / "rebinding_scene.py"
PUBLIC: Final = "93.184.216.34"
NAME: Final = "provider.example"


@pytest.mark.namespaces
def test_a_name_never_leads_to_a_private_address_also_when_it_changes() -> None:
    ended = namespaced(sys.executable, str(SCENE), network=True)
    assert ended.returncode == 0, ended.stderr
    seen: dict[str, dict[str, Any]] = json.loads(ended.stdout)
    assert {case: one["private"] for case, one in seen.items()} == dict.fromkeys(seen, 0)
    assert {case: one["result"] for case, one in seen.items()} == {
        "private": "OutputForbidden",
        "public": PUBLIC,
        "both": "OutputForbidden",
        "mapped": "OutputForbidden",
        "loopback six": "OutputForbidden",
        "rebound": PUBLIC,
        "redirect to a private name": "OutputForbidden",
        "rebound between redirects": "OutputForbidden",
    }
    # The address that was checked is the one that was connected to: the name is asked for once per request.
    assert seen["rebound"]["asked"] == [NAME]
    assert seen["rebound between redirects"]["asked"] == [NAME, NAME]
    assert seen["rebound between redirects"]["public"] == 1
