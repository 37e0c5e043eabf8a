"""`python -m bench`: starts real servers, measures what the plan says, prints tables."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Final

import click
from confluent_kafka import KafkaException

from apache_kafka import KafkaMissing
from bench import ROOT, drain, latency, machine, plan, report
from bench.child import Ended
from bench.servers import servers
from bench.subjects.pg_recvlogical import PgRecvlogical
from bench.subjects.relay_run import RelayRun
from bench.subjects.subject import Subject
from bench.tally import Broken
from relay.errors import RelayError

RESULTS: Final = ROOT / "bench" / "RESULTS.md"

SUBJECTS: Final[tuple[Subject, ...]] = (
    PgRecvlogical(),
    RelayRun("at_least_once"),
    RelayRun("exactly_once"),
)
"""In the order in which they take turns; the first is the floor that the others are measured by."""


@click.command()
@click.option("--quick", is_flag=True, help="A first figure, in about two minutes.")
@click.option("--part", type=click.Choice(["all", "drain", "latency"]), default="all", show_default=True)
@click.option("--rows", type=click.IntRange(1_000), help="Rows of each backlog, instead of the plan's.")
@click.option("--repetitions", type=click.IntRange(1), help="How often each subject has its turn.")
@click.option("--seconds", type=click.FloatRange(1), help="How long each steady load is measured.")
@click.option("--check", is_flag=True, help="Fail when a drain is slower, beside the floor, than its bound.")
@click.option("--write", is_flag=True, help="Also write bench/RESULTS.md.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Work in this folder and leave logs and data there.",
)
def main(
    *,
    quick: bool,
    part: str,
    rows: int | None,
    repetitions: int | None,
    seconds: float | None,
    check: bool,
    write: bool,
    keep: Path | None,
) -> None:
    """Measure the relay beside pg_recvlogical: drains of a backlog, and latency under a steady load.

    Every run reads all of what was published and fails when a row is missing, doubled or out of order.
    """
    chosen = plan.plan(quick=quick, part=part, rows=rows, repetitions=repetitions, seconds=seconds)
    began = time.monotonic()
    try:
        text, failings = _measure(chosen, keep)
    except KafkaMissing as missing:
        raise click.ClickException(f"There is no real Kafka to measure with: {missing}.") from None
    except (Broken, Ended, KafkaException, RelayError) as error:
        raise click.ClickException(str(error)) from None
    print(f"\n{text}\nTook {time.monotonic() - began:.0f} s.")
    if write:
        RESULTS.write_text(text, encoding="utf-8")
        print(f"Wrote {RESULTS.relative_to(ROOT)}.")
    if check:
        for sentence in failings:
            print(sentence, file=sys.stderr)
        if failings:
            sys.exit(1)
        print("Every drain holds its bound.")


def _measure(chosen: plan.Plan, keep: Path | None) -> tuple[str, list[str]]:
    load_before = os.getloadavg()[0]
    _say("Starting PostgreSQL and Kafka …")
    with servers(keep) as running:
        running.warm_up_broker()
        drains, tables = [], []
        for number, wanted in enumerate(chosen.drains):
            _say(f"Drain, {wanted.title}")
            drains.append(
                drain.measure(
                    running, wanted, SUBJECTS, chosen.drain_repetitions, _say, name=f"bench_drain_{number}"
                )
            )
            tables.append(report.drain_table(drains[-1]))
        for number, load in enumerate(chosen.latencies):
            _say(f"Latency, {load.title}")
            measured = latency.measure(
                running, load, SUBJECTS, chosen.latency_repetitions, _say, name=f"bench_latency_{number}"
            )
            tables.append(report.latency_table(measured))
        head = [f"* {line}" for line in machine.lines(running, load_before)]
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    parts = [
        "# Results",
        f"Written by `{command}`. What is measured how: `bench/README.md`.",
        "\n".join(head),
        *tables,
    ]
    return "\n\n".join(parts) + "\n", report.failings(drains)


def _say(sentence: str) -> None:
    print(sentence, flush=True)


if __name__ == "__main__":
    main()
