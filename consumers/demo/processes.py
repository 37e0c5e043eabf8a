"""The demo's child processes: real `python -m relay …`, watched while they run, always ended, by their pid.

Nothing here outlives the demo: whatever ends it, Ctrl-C included, ends them first.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from relay.errors import RelayError

STOP_S: Final = 20.0
"""For a clean stop: a POST in flight ends by its own deadline, which is shorter."""
END_S: Final = 5.0
"""For all of them together, when the demo itself was interrupted or failed."""
TAIL_LINES: Final = 15
_LOOK_AGAIN_S: Final = 0.02


class Child:
    """One process; its output goes to `log`, which a restart goes on writing."""

    def __init__(self, name: str, args: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.args = tuple(args)
        self.log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now, or ran last. Raises RelayError before the first start."""
        if self._process is None:
            raise RelayError(f"{self.name} was never started.")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "relay", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self.log.parent,
                # Ctrl-C at the terminal is the demo's, which then ends its children in order.
                start_new_session=True,
            )

    def kill(self) -> int:
        """SIGKILL, and wait: a crash. Returns the pid that is gone."""
        pid = self.pid
        self.signal(signal.SIGKILL)
        self._wait(STOP_S)
        self._process = None
        return pid

    def stop(self) -> None:
        """SIGTERM, and wait. Raises RelayError when it doesn't end cleanly within `STOP_S`."""
        if self._process is None:
            return
        self.signal(signal.SIGTERM)
        status = self._wait(STOP_S)
        self._process = None
        if status != 0:
            raise self.died(status)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self.running:
            self._process.send_signal(number)

    def require_running(self) -> None:
        """Raises RelayError with the end of its log when it ended by itself."""
        if self._process is not None and (status := self._process.poll()) is not None:
            raise self.died(status)

    def died(self, status: int | None) -> RelayError:
        how = "didn't end" if status is None else f"ended with status {status}"
        return RelayError(
            f"{self.name} (pid {self.pid if self._process else 'gone'}) {how}, which nobody had asked for."
            f" The end of its log:\n{self.tail()}",
            remedy=f"Its whole log is {self.log}.",
        )

    def tail(self) -> str:
        """The last lines of its log, indented."""
        if not self.log.exists():
            return "  (it said nothing)"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (it said nothing)"

    def _wait(self, timeout_s: float) -> int | None:
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None


class Children:
    """All of them. `with Children(…) as children:` ends whatever still runs when the block is left."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def add(self, name: str, args: Sequence[str], environment: Mapping[str, str]) -> Child:
        """A child that isn't started yet."""
        child = Child(name, args, environment, self._logs / f"{name}.log")
        self._children.append(child)
        return child

    def require_running(self) -> None:
        """Raises RelayError for the first that ended by itself."""
        for child in self._children:
            child.require_running()

    def end(self) -> None:
        """SIGTERM to all that run, `END_S` for them together, then SIGKILL."""
        for child in self._children:
            child.signal(signal.SIGTERM)
        deadline = time.monotonic() + END_S
        while any(child.running for child in self._children) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)
        for child in self._children:
            if child.running:
                child.kill()


def clean_environment() -> dict[str, str]:
    """This process's environment without RELAY_… and PG…, which speak of other servers."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "PG"))}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
