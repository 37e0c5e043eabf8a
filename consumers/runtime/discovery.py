"""Finds consumers by name in the entry-point group `relay.consumers`: ours and anybody's in the same way."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from consumers.runtime.consumer import Consumer
from relay.errors import UsageError

GROUP: Final = "relay.consumers"


def installed() -> dict[str, EntryPoint]:
    """Entry points by name; nothing is imported."""
    return {found.name: found for found in sorted(entry_points(group=GROUP), key=lambda each: each.name)}


def find(name: str) -> type[Consumer]:
    """Import the consumer `name`. Raises UsageError when there is none, or it isn't one."""
    known = installed()
    if name not in known:
        raise UsageError(
            f"There is no consumer {name!r}; installed are {', '.join(known) or 'none'}.",
            remedy=f"A package adds one with an entry point in the group {GROUP}.",
        )
    try:
        found = known[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The consumer {name!r} ({known[name].value}) can't be imported: {error}.",
            remedy="Mend the entry point of the package that declares it, or install what it needs.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Consumer)):
        raise UsageError(
            f"The entry point {name!r} ({known[name].value}) is no subclass of consumers.runtime.Consumer."
        )
    if getattr(found, "name", None) != name:
        raise UsageError(
            f"The consumer {known[name].value} calls itself {getattr(found, 'name', None)!r}, "
            f"and its entry point calls it {name!r}.",
            meaning="Its group id is made of the first, and `relay consume` knows the second.",
            remedy="Give both the same name.",
        )
    return found
