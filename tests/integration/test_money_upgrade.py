"""Books that were kept before the ledger said what each entry changed add up after the upgrade."""

import shutil
from pathlib import Path

from fix_ledger import wrong_in_the_books
from fix_operations import OPERATOR, WORKER, Stage
from fix_postgres import Database
from relay.contracts import POSTGRES
from relay.migrations import apply

LAST_BEFORE = "0010"


def test_books_from_before_the_upgrade_add_up_after_it(empty_database: Database, tmp_path: Path) -> None:
    for migration in sorted(POSTGRES.glob("*.sql")):
        if migration.name[:4] <= LAST_BEFORE:
            shutil.copy(migration, tmp_path)
    with empty_database.connect() as owner:
        apply(owner, tmp_path)
    stage = Stage(empty_database)
    stage.allow("ann", "20")
    for operation in (stage.prepare(), stage.prepare(owner="ann")):
        stage.uncertain(operation)
    settled, over = stage.accepted(stage.prepare()), stage.accepted(stage.prepare(owner="ann"))
    disputed = stage.resubmitted(stage.prepare())
    both = stage.resubmitted(stage.prepare())
    with stage.acting(WORKER):
        for attempt, cost in ((settled, "4.5"), (over, "7.000001"), (both, "1")):
            stage.connection.execute("select relay.settle(%s, %s, 'job succeeded')", [attempt, cost])
        given_back = stage.prepare()
    stage.claim(given_back)
    with stage.acting(WORKER):
        stage.say("hold")
        assert stage.move(given_back, "held", "paused") == 1
    with empty_database.connect() as owner:
        apply(owner)
    assert wrong_in_the_books(empty_database) == []
    of_ann = "select reserved, disputed, settled, overrun from relay.allowance where owner_id = 'ann'"
    assert str(stage.connection.execute(of_ann).fetchone()) == str(
        stage.connection.execute("select 5.000000, 0.000000, 7.000001, true").fetchone()
    )
    # What was booked before can be corrected after it.
    with stage.acting(OPERATOR):
        stage.connection.execute("select relay.correct(%s, 5, 'invoice')", [over])
        stage.connection.execute("select relay.refund(%s, null, 'never charged')", [disputed])
    assert wrong_in_the_books(empty_database) == []
    assert stage.one("select overrun from relay.allowance where owner_id = 'ann'") is False
    stage.close()
