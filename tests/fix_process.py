"""Real child processes of the command under test: started, waited for by what they print, and always ended.

A test must never wait for a time: it waits for a text, an exit, or something that it can see in a server.
"""

import codecs
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from fix_waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[1]


class Process:
    """One child; standard output and error are one stream, kept in `log` and in memory."""

    def __init__(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: Path, cwd: Path
    ) -> None:
        self.command = [str(part) for part in command]
        self.log = log
        self._text = ""
        self._said = threading.Condition()
        self._ended = False
        self._popen = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=cwd,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def peak_bytes(self) -> int:
        """The most memory that was resident so far (VmHWM, proc_pid_status(5))."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        (line,) = (line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def output(self) -> str:
        """All that it has said until now."""
        with self._said:
            return self._text

    def wait_for(self, pattern: str, timeout_s: float = PATIENCE_S, *, times: int = 1) -> str:
        """Wait until the regular expression `pattern` was said `times` times; returns the last match's text.

        Raises AssertionError, with the output, when the process ends or the time is up before that.
        """
        found: list[re.Match[str]] = []

        def said_or_ended() -> bool:
            found[:] = re.finditer(pattern, self._text, re.MULTILINE)
            return len(found) >= times or self._ended

        with self._said:
            self._said.wait_for(said_or_ended, timeout_s)
        if len(found) < times:
            state = "ended" if self._ended else f"is silent about it after {timeout_s:g} s"
            raise AssertionError(f"{self._title()} {state}; wanted {pattern!r}:\n{self.output()}")
        return found[times - 1].group()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait for its end. Returns the exit status, negative for a signal, with all output read."""
        try:
            status = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self._title()} still runs after {timeout_s:g} s:\n{self.output()}"
            ) from None
        # A grandchild may hold the pipe open: its output is not ours to wait for.
        self._reader.join(timeout=5)
        return status

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            self._popen.send_signal(number)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM, and wait: how an orchestrator ends it."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> int:
        """SIGKILL, and wait: a crash. It ends a stopped process as well."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def wait_until_stopped(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until SIGSTOP holds it (a failpoint's `stop`), so that it can do nothing more."""
        waiter = threading.Thread(
            # WNOWAIT: the exit status stays for Popen.
            target=lambda: os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT),
            name=f"stopped-{self.pid}",
            daemon=True,
        )
        waiter.start()
        waiter.join(timeout_s)
        if waiter.is_alive() or not self.running:
            raise AssertionError(f"{self._title()} was not stopped within {timeout_s:g} s:\n{self.output()}")

    def _title(self) -> str:
        return " ".join(self.command)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with self._popen.stdout as stream, self.log.open("ab") as log:
            while chunk := os.read(stream.fileno(), 64 * 1024):
                log.write(chunk)
                log.flush()
                with self._said:
                    self._text += decoder.decode(chunk)
                    self._said.notify_all()
        with self._said:
            self._ended = True
            self._said.notify_all()


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without RELAY_… and PG…, which are somebody else's, and with `extra`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELAY_", "PG"))}
    return {**clean, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "COLUMNS": "160", **extra}


class RunProcess(Protocol):
    """Start ``relay ARGS`` (or `command`) as a child; with `wait_for`, return once it has said that."""

    def __call__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        wait_for: str | None = None,
        *,
        command: Sequence[str | Path] = (sys.executable, "-m", "relay"),
        cwd: Path | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Process: ...


def pytest_configure(config: pytest.Config) -> None:
    """A run that is told to end (`timeout`, a cancelled job) ends its servers and children as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


_CHILDREN = pytest.StashKey[list[Process]]()
_REPORTED_LINES = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that failed shows what its children said last."""
    report = yield
    if report.when == "call" and report.failed:
        for child in item.stash.get(_CHILDREN, []):
            state = "running" if child.running else f"ended with {child.wait()}"
            last = "\n".join(child.output().splitlines()[-_REPORTED_LINES:])
            report.sections.append((f"{' '.join(child.command)} ({state})", last))
    return report


@pytest.fixture
def run_process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunProcess]:
    """Starts children of `python -m relay`; those that still run are killed, by pid, at teardown."""
    children: list[Process] = []
    request.node.stash[_CHILDREN] = children

    def run(
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        wait_for: str | None = None,
        *,
        command: Sequence[str | Path] = (sys.executable, "-m", "relay"),
        cwd: Path | None = None,
        timeout_s: float = PATIENCE_S,
    ) -> Process:
        log = tmp_path / f"process-{len(children)}.log"
        child = Process([*command, *args], environment(env or {}), log, cwd or tmp_path)
        children.append(child)
        if wait_for is not None:
            child.wait_for(wait_for, timeout_s)
        return child

    yield run
    for child in children:
        child.kill()
