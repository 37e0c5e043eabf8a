"""The boundaries that an operation crosses, one after the other; nothing is atomic across two of them. An
incident names the one that it crossed. The database and docs/architecture.md have the same words; a test
compares them.
"""

from enum import StrEnum
from typing import Final


class Boundary(StrEnum):
    """In the order in which an operation meets them."""

    APPLICATION_COMMIT = "application_commit"
    WAL_TO_KAFKA = "wal_to_kafka"
    CLAIM = "claim"
    NETWORK = "network"
    PROVIDER_RESERVATION = "provider_reservation"
    ID_COMMIT = "id_commit"


CROSSED: Final = {
    Boundary.APPLICATION_COMMIT: "the business row, the operation and its outbox rows",
    Boundary.WAL_TO_KAFKA: "a committed outbox row becomes a record",
    Boundary.CLAIM: "one worker takes an operation, its money is reserved",
    Boundary.NETWORK: "the POST",
    Boundary.PROVIDER_RESERVATION: "the provider charges and creates its job",
    Boundary.ID_COMMIT: "the job's id reaches the operation",
}
"""What passes there."""
