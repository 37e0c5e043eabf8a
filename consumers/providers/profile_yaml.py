"""Reads a profile's YAML, and says of a wrong one where it is wrong and how it is mended: file, line, column,
field. Pure; it knows no field by name.
"""

import difflib
import re
import types
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

from relay.errors import UsageError

T = TypeVar("T")

_VARIABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_VARIABLE_TEXT: Final = re.compile(r"[A-Za-z0-9._~:/-]{1,300}")
_TAKEN: Final = frozenset(
    {
        "payload",
        "secret",
        "operation_id",
        "idempotency_key",
        "job_id",
        "body",
        "body_sha256",
        "timestamp",
        "id",
    }
)
"""Placeholders that are filled in later, with something else each time."""
_WORDS: Final = {
    "float": "a number",
    "int": "a whole number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of fields",
    "null": "empty",
    "date": "a date",
    "datetime": "a time",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A document that is YAML, and where each thing stands in it."""

    name: str
    root: yaml.Node
    content: dict[str, Any]

    def convert(self, to: type[T]) -> T:
        """`content` as `to`. Raises UsageError."""
        try:
            return msgspec.convert(self.content, to, str_keys=True)
        except msgspec.ValidationError as error:
            raise self._wrong(error, to) from None

    def require_fields(self, where: str, fields: tuple[str, ...]) -> None:
        """Raises UsageError unless each of `fields`, listed at `where`, is a field of the document."""
        for number, field in enumerate(fields):
            if node_at(self.root, field.split(".")) is None:
                what = f"it names {field!r}, and the document has no such field"
                raise self.refused([where, str(number)], where, what, remedy="Name one that stands in it.")

    def _wrong(self, error: msgspec.ValidationError, to: Any) -> UsageError:
        """msgspec says: Expected `float`, got `str` - at `$.submit.deadline_s`. People need file and line."""
        reason, _, where = str(error).partition(" - at `$")
        parts = [part for part in re.split(r"[.\[\]]+", where.rstrip("`")) if part]
        # A path's last part is empty where it is of a mapping's value: `$.submit.headers[...]`.
        if where.rstrip("`").endswith("[...]"):
            parts = [part for part in parts if part] + self._wrong_value(parts, to)
        expected = type_at(to, parts)
        if (unknown := re.search(r"unknown field `([^`]+)`", reason)) is not None:
            return self.unknown(parts, unknown[1], expected)
        if (missing := re.search(r"missing required field `([^`]+)`", reason)) is not None:
            field = ".".join([*parts, missing[1]])
            return self.refused(
                parts, field, "it is missing", remedy=f"Add {missing[1]}; without it nothing can be assumed."
            )
        own = self._named_in(reason, parts)
        return self.refused(own, ".".join(own), _said(reason, expected))

    def _wrong_value(self, parts: list[str], to: Any) -> list[str]:
        """The key in the mapping at `parts` whose value isn't of the mapping's type."""
        expected, here = type_at(to, [*parts, "?"]), _content_at(self.content, parts)
        for key, held in here.items() if isinstance(here, dict) else ():
            try:
                msgspec.convert(held, expected)
            except msgspec.ValidationError:
                return [str(key)]
        return []

    def unknown(self, parts: list[str], name: str, expected: Any) -> UsageError:
        """There is no field `name` in what stands at `parts`, which should be an `expected`."""
        known = fields_of(expected)
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        remedy = f"Did you mean {close[0]}?" if close else f"It may have: {', '.join(known)}."
        field = ".".join([*parts, name])
        return self.refused([*parts, name], field, "it is an unknown field", remedy=remedy, key=True)

    def _named_in(self, reason: str, parts: list[str]) -> list[str]:
        """The field that a part's own check begins its words with, if there is such a one."""
        named = re.match(r"[A-Za-z_][\w.-]*", reason)
        if named is None:
            return parts
        found = [*parts, *named[0].split(".")]
        while len(found) > len(parts) and node_at(self.root, found) is None:
            found = found[:-1]
        return found

    def refused(
        self, parts: list[str], field: str, what: str, *, remedy: str = "", key: bool = False
    ) -> UsageError:
        """One sentence about what stands at `parts`; `key`: about its name rather than its value."""
        node = _key_at(self.root, parts) if key else node_at(self.root, parts)
        while node is None and parts:
            parts = parts[:-1]
            node = node_at(self.root, parts)
        where = "" if node is None or not node.start_mark else _position(node.start_mark)
        return UsageError(
            f"The profile {self.name}{where} is wrong at {field or 'the document'}: {what}.", remedy=remedy
        )


def read(text: str, name: str, to: type[Struct], *, reserved: tuple[str, ...]) -> Source:
    """`text` as YAML, with its variables filled in. Raises UsageError for what is no profile of `to`."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"The profile {name} is not YAML: {' '.join(str(error).split())}.") from None
    # Refused here as well: the constructor of a strange tag, or a number too long for Python.
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The profile {name} can't be read: {' '.join(str(error).split())}.") from None
    if root is None or not isinstance(content, dict):
        raise UsageError(
            f"The profile {name} is not a YAML mapping.",
            remedy="It begins with `name:`, as the shipped ones do.",
        )
    _refuse_repeated_keys(root, name)
    source = Source(name, root, content)
    for field in reserved:
        if field in content:
            raise source.unknown([], field, to)
    return Source(name, root, _filled(source))


def _filled(source: Source) -> dict[str, Any]:
    """The content with ${name} of its own variables replaced by their texts."""
    variables = source.content.get("variables") or {}
    if not isinstance(variables, dict) or not variables:
        return source.content
    for name, text in variables.items():
        where = ["variables", str(name)]
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name) or name in _TAKEN:
            taken = f"{name} stands for something else" if name in _TAKEN else f"{name!r} is no name for one"
            raise source.refused(where, "variables", taken, remedy="Take lower-case letters, digits and _.")
        if not isinstance(text, str) or not _VARIABLE_TEXT.fullmatch(text):
            raise source.refused(
                where, f"variables.{name}", "it must be text of letters, digits and . _ ~ : / - alone"
            )
        if f"${{{name}}}" not in str({**source.content, "variables": None}):
            raise source.refused(
                where, f"variables.{name}", f"nothing in the profile has ${{{name}}}", key=True
            )
    filled = _replaced({**source.content, "variables": {}}, {f"${{{k}}}": v for k, v in variables.items()})
    return {**filled, "variables": variables}


def _replaced(held: Any, texts: dict[str, str]) -> Any:
    if isinstance(held, str):
        for placeholder, text in texts.items():
            held = held.replace(placeholder, text)
        return held
    if isinstance(held, dict):
        return {key: _replaced(one, texts) for key, one in held.items()}
    return [_replaced(one, texts) for one in held] if isinstance(held, list) else held


# Types -----------------------------------------------------------------------------------------------


def type_at(to: Any, parts: list[str]) -> Any:
    """The type that the field at `parts` of a `to` has; None where there is none."""
    here = [to]
    for part in parts:
        here = [found for one in here for found in _step(one, part)]
    return Union[tuple(here)] if here else None  # noqa: UP007


def fields_of(to: Any) -> list[str]:
    """Names of the fields that a `to` has, where it is a part or may be one."""
    return [
        field.encode_name
        for one in _alternatives(to)
        if isinstance(one, type) and issubclass(one, Struct)
        for field in msgspec.structs.fields(one)
        if not field.encode_name.startswith("__")
    ]


def _alternatives(to: Any) -> list[Any]:
    origin = get_origin(to)
    if origin is Annotated:
        return _alternatives(get_args(to)[0])
    if origin in {Union, types.UnionType}:
        return [found for one in get_args(to) for found in _alternatives(one)]
    return [to]


def _step(to: Any, part: str) -> list[Any]:
    found: list[Any] = []
    for one in _alternatives(to):
        origin, arguments = get_origin(one), get_args(one)
        if isinstance(one, type) and issubclass(one, Struct):
            found += [field.type for field in msgspec.structs.fields(one) if field.encode_name == part]
        elif origin is tuple:
            found.append(arguments[0])
        elif origin is dict:
            found.append(arguments[1])
    return found


# Words -----------------------------------------------------------------------------------------------


def _said(reason: str, expected: Any) -> str:
    """msgspec's reason in words for people; what a part's own check said stays as it is."""
    choices = [
        word for one in _alternatives(expected) if get_origin(one) is Literal for word in get_args(one)
    ]
    if (invalid := re.fullmatch(r"Invalid enum value (.+)", reason)) is not None and choices:
        fields = ", or a mapping of fields" if fields_of(expected) else ""
        return f"it is {invalid[1]}, and must be one of {', '.join(map(str, choices))}{fields}"
    if (wrong := re.fullmatch(r"Expected `([^`]+)`, got `([^`]+)`", reason)) is not None:
        names = [name.strip() for name in wrong[1].split("|")]
        wanted = " or ".join(_WORDS.get(name, name) for name in names)
        if choices:
            wanted = f"{wanted} ({', '.join(map(str, choices))})"
        quote = "; put it in quotes" if "str" in names and wrong[2] not in {"array", "object"} else ""
        return f"it must be {wanted}, and is {_WORDS.get(wrong[2], wrong[2])}{quote}"
    if (bound := re.fullmatch(r"Expected `(\w+)` (>=|>|<=|<) ([\d.]+)", reason)) is not None:
        words = {">=": "of at least", ">": "greater than", "<=": "of at most", "<": "less than"}[bound[2]]
        return f"it must be {_WORDS.get(bound[1], bound[1])} {words} {float(bound[3]):g}"
    if (pattern := re.fullmatch(r"Expected `str` matching regex '(.+)'", reason)) is not None:
        return f"it must match {pattern[1]}"
    return reason.replace("`", "")


def _position(mark: yaml.Mark) -> str:
    return f", line {mark.line + 1}, column {mark.column + 1},"


# Nodes -----------------------------------------------------------------------------------------------


def node_at(root: yaml.Node, parts: list[str]) -> yaml.Node | None:
    """The node of what stands at `parts`, or None."""
    node: yaml.Node | None = root
    for part in parts:
        if isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
        elif isinstance(node, yaml.MappingNode):
            node = next((held for key, held in node.value if key.value == part), None)
        else:
            return None
    return node


def _key_at(root: yaml.Node, parts: list[str]) -> yaml.Node | None:
    mapping = node_at(root, parts[:-1])
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((key for key, _ in mapping.value if key.value == parts[-1]), None)


def _content_at(content: Any, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(content, list) and part.isdigit() and int(part) < len(content):
            content = content[int(part)]
        elif isinstance(content, dict):
            content = content.get(part)
    return content


def _refuse_repeated_keys(node: yaml.Node, name: str) -> None:
    """YAML takes the last of two equal keys in silence; a second `reject` must not hide the first."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, held in node.value:
            if str(key.value) in seen:
                where = _position(key.start_mark) if key.start_mark else ""
                raise UsageError(
                    f"The profile {name}{where} has {key.value!r} twice.", remedy="Leave one of them."
                )
            seen.add(str(key.value))
            _refuse_repeated_keys(held, name)
    elif isinstance(node, yaml.SequenceNode):
        for held in node.value:
            _refuse_repeated_keys(held, name)
