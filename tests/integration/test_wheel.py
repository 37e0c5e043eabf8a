"""The wheel carries all that the code reads, and works where there is no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fix_process import ROOT, environment

READ_AT_RUN_TIME = {".sql", ".yaml", ".avsc", ".typed"}

OUTSIDE = """
import relay, consumers
from pathlib import Path
from relay.avro.catalog import Catalog
from relay.contracts import AVRO, POSTGRES
from relay.migrations import shipped

here = Path({checkout!r})
for place in (relay.__file__, consumers.__file__, AVRO, POSTGRES):
    assert here not in Path(place).parents, place
print(len(shipped()), *Catalog.load(()).event_types())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from this checkout, as a release is."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_that_the_code_reads_is_in_the_wheel(wheel: Path) -> None:
    wanted = set()
    for package in ("relay", "consumers", "schemas"):
        for path in (ROOT / package).rglob("*"):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix == ".py" or path.suffix in READ_AT_RUN_TIME:
                wanted.add(name.replace("schemas/", "relay/_contracts/", 1) if package == "schemas" else name)
    with zipfile.ZipFile(wheel) as archive:
        assert wanted <= set(archive.namelist())
        assert not [name for name in archive.namelist() if name.startswith("tests/")]


def test_the_wheel_finds_its_contracts_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    # -P: the present folder isn't on the path; the checkout's editable install comes after PYTHONPATH.
    done = subprocess.run(
        [sys.executable, "-P", "-c", OUTSIDE.format(checkout=str(ROOT))],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(tmp_path / "installed")}),
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    count, *event_types = done.stdout.split()
    assert int(count) == len(list((ROOT / "schemas/postgres").glob("*.sql")))
    assert set(event_types) == {path.name for path in (ROOT / "schemas/avro").iterdir() if path.is_dir()}
