"""A process under measurement: started, looked at through /proc (Linux), and always ended.

What it has used is read while it lives or is a zombie, so that nothing that happens afterwards counts.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

STOP_TIMEOUT_S: Final = 45.0
"""A clean stop of the relay waits up to 30 s for Kafka."""

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_USER_TICKS: Final = 11  # proc(5), /proc/pid/stat: utime and stime, counted from the field after the name
_LOG_TAIL_LINES: Final = 30


class Ended(Exception):
    """A process ended that should have gone on, or the other way round; with the end of its log."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without RELAY_… and PG…, which are somebody else's, and with `extra`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "PG"))}
    return {**clean, **extra}


def cpu_s(pid: int) -> float | None:
    """User and system seconds that all threads of a process have used; None when there is no such process.

    Its own ended children are not among them.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return (int(fields[_USER_TICKS]) + int(fields[_USER_TICKS + 1])) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """Seconds that all processors have been busy since the machine started, stolen ones included."""
    busy = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    # proc(5): user nice system idle iowait irq softirq steal; guest time is in user already.
    user, nice, system, _, _, irq, softirq, steal = map(int, busy[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def peak_bytes(pid: int) -> int | None:
    """The most that was resident since the program was executed; None once it has ended.

    ru_maxrss won't do: over exec it keeps what the process that forked had resident.
    """
    return _labelled(Path(f"/proc/{pid}/status"), "VmHWM:", 1024)


def written_bytes(pid: int) -> int | None:
    """All that write calls of a process have taken, /dev/null included; None once it has ended."""
    return _labelled(Path(f"/proc/{pid}/io"), "wchar:", 1)


def _labelled(path: Path, label: str, unit: int) -> int | None:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return next((int(line.split()[1]) * unit for line in lines if line.startswith(label)), None)


class Child:
    """One process; what it says goes to `log`."""

    def __init__(self, command: Sequence[str | Path], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._title = Path(command[0]).name
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself. It stays a zombie, so that its CPU seconds can still be read."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def require_running(self) -> None:
        """Raises Ended."""
        if self.ended:
            status = self._process.wait()
            raise Ended(f"{self._title} ended with status {status}:\n{self.said()}")

    def wait(self, timeout_s: float) -> None:
        """Wait for a clean end. Raises Ended when it isn't one, or takes longer."""
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Ended(f"{self._title} still runs after {timeout_s:g} s:\n{self.said()}") from None
        if status != 0:
            raise Ended(f"{self._title} ended with status {status}:\n{self.said()}")

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL and Ended when it takes too long or fails."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self.wait(STOP_TIMEOUT_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL when it still runs, and wait."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def run(command: Sequence[str | Path], env: Mapping[str, str], log: Path, timeout_s: float) -> None:
    """Run to a clean end. Raises Ended."""
    child = Child(command, env, log)
    try:
        child.wait(timeout_s)
    finally:
        child.kill()
