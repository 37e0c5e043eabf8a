"""The consumer runtime: subclass `Consumer`, and `relay consume NAME` does the rest."""

from consumers.runtime.consumer import Consumer, Context, Event, Permanent, Position, Transient

__all__ = ["Consumer", "Context", "Event", "Permanent", "Position", "Transient"]
