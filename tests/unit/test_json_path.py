"""The part of JSONPath that profiles use."""

import json

import pytest

from consumers.providers.json_path import Object, find, steps


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", 1),
        ("$.a", 1),
        ("$.b[*].u", 2),
        ("$.b[1].u", 1),
        ("$.b[9].u", 0),
        ("$.b.u", 0),
        ("$.a.b", 0),
        ("$.twice", 2),
        ("$[0]", 0),
        ("$.missing", 0),
    ],
)
def test_every_value_at_a_path_is_found_and_nothing_else(path: str, found: int) -> None:
    text = '{"a": "x", "b": [{"u": 1}, {"u": 2}, 3], "twice": 1, "twice": 2}'
    assert len(find(path, json.loads(text, object_pairs_hook=Object))) == found


@pytest.mark.parametrize(
    "path", ["", "a", ".a", "$a", "$.", "$.a.", "$..a", "$[", "$[-1]", "$[?(@.a)]", "$.a b", "$.1"]
)
def test_what_is_not_such_a_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path like"):
        steps(path)
