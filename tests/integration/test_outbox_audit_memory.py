"""However many rows and records there are, the audit holds few of them.

The figures are the kernel's high-water mark of resident memory (VmHWM, proc_pid_status(5)) and are printed.
"""

import json
import sys
import time
from typing import Final

import pytest

from fix_process import RunProcess
from fix_relay import RelayUnderTest
from fix_versions import measured

MIB: Final = 1024 * 1024
PROMISED_BYTES: Final = 150 * MIB
GROWS_MOST_BYTES: Final = 24 * MIB
"""SQLite's cache and sorter take 8 MiB each once there is more than that; ten million take no more."""

FEW: Final = 20_000
MANY: Final = 300_000

AUDIT_THAT_SAYS_ITS_PEAK: Final = """
import atexit, re, sys
from relay.cli import main
atexit.register(lambda: print("peak", re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]))
main()
"""


def audited(relay: RelayUnderTest, run_process: RunProcess) -> tuple[int, float, int]:
    """Rows that the audit counted, how many seconds it took, and its peak of memory in bytes."""
    began = time.monotonic()
    process = run_process(
        ["outbox", "audit", "--json"],
        relay.environment("relay_reader"),
        command=[sys.executable, "-c", AUDIT_THAT_SAYS_ITS_PEAK],
    )
    assert process.wait() == 0, process.output()
    took_s = time.monotonic() - began
    *_, summary, peak = process.output().splitlines()
    return json.loads(summary)["summary"]["rows"], took_s, int(peak.split()[1]) * 1024


@pytest.mark.slow
def test_fifteen_times_the_events_are_audited_in_the_same_memory(
    relay: RelayUnderTest, run_process: RunProcess, pytestconfig: pytest.Config
) -> None:
    process = relay.start()
    peaks: list[int] = []
    for already, count in ((0, FEW), (FEW, MANY)):
        relay.emit_many(count - already, transactions=20)
        relay.wait_published(process)
        rows, took_s, peak = audited(relay, run_process)
        assert rows == count
        peaks.append(peak)
        measured(pytestconfig, f"audit of {count} events", f"{took_s:.1f} s; peak {peak / MIB:.0f} MiB")
    few, many = peaks
    assert many < few + GROWS_MOST_BYTES
    assert many < PROMISED_BYTES
