"""Proves each guard by removing it: a copy of the tree without the guard's text must make its test fail.

``python tests/guards.py [NAME …]`` copies the checkout, checks that the tests pass as they are, then removes
one guard at a time and runs its test. It changes nothing in the checkout. Exit status 1 when a guard's test
passes without it, or when a guard's text is no longer there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LIST: Final = Path(__file__).with_name("guards.toml")
TEST_TIMEOUT_S: Final = 600
# pytest: 1 is "tests failed"; 2 to 5 are errors of ours (interrupted, usage, nothing collected).
FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Guard:
    """`removed` occurs once in `file`; with `put` in its place `test` must fail."""

    name: str
    file: str
    removed: str
    test: str
    put: str = ""

    def apply(self, tree: Path) -> None:
        """Remove it from the copy at `tree`. Raises ValueError when its text isn't there exactly once."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8")
        if (found := text.count(self.removed)) != 1:
            raise ValueError(f"{self.name}: its text occurs {found} times in {self.file}, not once")
        path.write_text(text.replace(self.removed, self.put), encoding="utf-8")


def load(path: Path = LIST) -> list[Guard]:
    """All guards, in the order of the file."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["guard"]
    return [Guard(**entry) for entry in entries]


def copy_tree(target: Path) -> None:
    """What git doesn't ignore, and the cache of servers' jars by a link."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    cache = ROOT / ".cache"
    if cache.is_dir():
        (target / ".cache").symlink_to(cache, target_is_directory=True)


def run_tests(tree: Path, tests: Sequence[str]) -> int:
    """pytest's exit status for `tests` in `tree`; its children import from there too."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    with (tree / "guards.log").open("wb") as log:
        return subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=TEST_TIMEOUT_S,
            check=False,
        ).returncode


def _tail(tree: Path) -> str:
    return "\n".join((tree / "guards.log").read_text(encoding="utf-8", errors="replace").splitlines()[-25:])


def prove(guard: Guard) -> str | None:
    """None when its test fails without it, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        try:
            guard.apply(tree)
        except ValueError as error:
            return str(error)
        status = run_tests(tree, [guard.test])
        if status == FAILED:
            return None
        what = "passes" if status == 0 else f"could not run (pytest's exit status is {status})"
        return f"{guard.name}: without it {guard.test} {what}\n{_tail(tree)}"


def main(names: Sequence[str]) -> int:
    guards = [guard for guard in load() if not names or guard.name in names]
    if not guards:
        print(f"no guard is called {' or '.join(names)}; they are in {LIST.name}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        tests = list(dict.fromkeys(guard.test for guard in guards))
        if run_tests(tree, tests) != 0:
            print(f"the tests fail with every guard in place:\n{_tail(tree)}", file=sys.stderr)
            return 1
    print(f"{len(tests)} tests pass with every guard in place", flush=True)
    failures = 0
    for guard in guards:
        wrong = prove(guard)
        failures += wrong is not None
        print(f"{'NOT PROVEN' if wrong else 'proven':10}  {guard.name}  ({guard.file})", flush=True)
        if wrong:
            print(wrong, file=sys.stderr)
    print(f"{len(guards) - failures} of {len(guards)} guards proven")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
