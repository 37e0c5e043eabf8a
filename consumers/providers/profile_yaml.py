"""Finds in a profile's YAML the line that a message is about. Pure."""

import re

import msgspec
import yaml

from relay.errors import UsageError


def one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


def sentence(error: msgspec.ValidationError, root: yaml.Node, source: str) -> UsageError:
    """msgspec says: Expected `float`, got `str` - at `$.submit.deadline_s`. A person needs file and line."""
    reason, _, where = str(error).partition(" - at `$")
    parts = [part for part in re.split(r"[.\[\]]+", where.rstrip("`")) if part]
    named = re.search(r"(?:unknown field|missing required field) `([^`]+)`", reason)
    node = node_at(root, [*parts, named[1]] if named else parts) or node_at(root, parts)
    line = f", line {node.start_mark.line + 1}" if node is not None and node.start_mark else ""
    field = ".".join(parts) or "the document"
    return UsageError(f"The profile {source}{line} is wrong at {field}: {reason.replace('`', '')}.")


def node_at(root: yaml.Node, parts: list[str]) -> yaml.Node | None:
    node: yaml.Node | None = root
    for part in parts:
        if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
        elif isinstance(node, yaml.MappingNode):
            node = next((held for key, held in node.value if key.value == part), None)
        else:
            return None
    return node


def refuse_repeated_keys(node: yaml.Node, source: str) -> None:
    """YAML takes the last of two equal keys in silence; a second `reject` must not hide the first."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, held in node.value:
            if str(key.value) in seen:
                line = key.start_mark.line + 1 if key.start_mark else 0
                raise UsageError(f"The profile {source}, line {line}, has {key.value!r} twice.")
            seen.add(str(key.value))
            refuse_repeated_keys(held, source)
    elif isinstance(node, yaml.SequenceNode):
        for held in node.value:
            refuse_repeated_keys(held, source)
