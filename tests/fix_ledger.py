"""After every test with dispatchers, crashes or late answers the books are audited: ledger, reservations,
allowances and batches say the same, and whatever may cost is booked.
"""

from uuid import UUID

from consumers.operations.queries import Queries
from fix_postgres import Database


def wrong_in_the_books(database: Database) -> list[tuple[UUID | None, str]]:
    """What the audit's checks of money and batches find in `database`."""
    with database.connect() as connection:
        return [
            (operation_id, what)
            for block, query in Queries("audit").items()
            if block.startswith(("money_", "batch_"))
            for operation_id, what in connection.execute(query, {"overdue_s": 0}).fetchall()
        ]
