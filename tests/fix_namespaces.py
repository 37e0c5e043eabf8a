"""Worlds of a test's own: a network with public addresses that lead nowhere, a disk of a few megabytes.

Linux lets root make them, and elsewhere whoever may make a user namespace. Where neither is allowed the tests
that need one are deselected, as those that only root can show are; the summary says so.
"""

import os
import shutil
import subprocess
from functools import cache

import pytest

from fix_versions import measured


def namespaced(*command: str, network: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `command` in a mount namespace of its own, and with `network` in a network of its own."""
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    kinds = ["--mount", *(["--net"] if network else [])]
    return subprocess.run(["unshare", *user, *kinds, *command], capture_output=True, text=True, check=False)


@cache
def possible() -> bool:
    """Whether both kinds may be made here, and the programs that furnish them are installed."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    bound = namespaced("mount", "--bind", "/etc/resolv.conf", "/etc/resolv.conf", network=True)
    return bound.returncode == 0 and namespaced("mount", "-t", "tmpfs", "tmpfs", "/mnt").returncode == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("namespaces")]
    if needing and not possible():
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)
        measured(config, "namespaces", f"not allowed here: {len(needing)} tests are left out")
