"""The floor: PostgreSQL's own client takes the stream and does nothing with it. Nobody can be faster."""

from bench.child import Child
from bench.source import PUBLICATION
from bench.subjects.subject import Run
from relay.wal.lsn import format_lsn


class PgRecvlogical:
    """`pg_recvlogical` with the plugin and the options that the relay uses."""

    name = "pg_recvlogical"
    delivery = "floor"

    def prepare(self, run: Run) -> None:
        run.source.make_slot(run.name)

    def start(self, run: Run) -> Child:
        command = [str(run.source.postgres.bindir / "pg_recvlogical"), f"--dbname={run.source.url}"]
        command += ["--start", f"--slot={run.name}", f"--file={run.output}", "--no-loop"]
        command += ["--option=proto_version=1", f"--option=publication_names={PUBLICATION}"]
        if run.until_lsn is not None:
            command.append(f"--endpos={format_lsn(run.until_lsn)}")
        return Child(command, {}, run.folder / "pg_recvlogical.log")
