"""Says which servers the tests talked to, and refuses to skip under CI=true.

A run that used the embedded broker in place of Kafka must never look like one that used the real thing.
"""

import os
from collections.abc import Generator
from typing import Any

import pytest

_SERVERS = pytest.StashKey[dict[str, str]]()
_FIGURES = pytest.StashKey[dict[str, str]]()


def in_ci() -> bool:
    """With CI=true nothing may be missing and nothing may be skipped."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def talked_to(config: pytest.Config, name: str, version: str) -> None:
    """Remember a server for the summary."""
    config.stash[_SERVERS][name] = version


def measured(config: pytest.Config, what: str, figures: str) -> None:
    """Remember figures for the summary: a test that passes shows nothing else of what it saw."""
    config.stash[_FIGURES][what] = figures


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_SERVERS] = {}
    config.stash[_FIGURES] = {}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what its tests saw: only the controller writes the summary."""
    output: dict[str, dict[str, str]] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = session.config.stash[_SERVERS]
        output["figures"] = session.config.stash[_FIGURES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The controller's side of it. `node.config` is the controller's own."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_SERVERS] |= output.get("servers", {})
    node.config.stash[_FIGURES] |= output.get("figures", {})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and in_ci() and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"CI=true, and nothing may be skipped there: {reason}"
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    servers = config.stash[_SERVERS]
    if servers:
        terminalreporter.section("servers that the tests talked to")
        for name, version in sorted(servers.items()):
            terminalreporter.write_line(f"{name}: {version}")
    figures = config.stash[_FIGURES]
    if figures:
        terminalreporter.section("what the tests measured")
        for what, seen in figures.items():
            terminalreporter.write_line(f"{what}: {seen}")
