"""Measures the relay beside what a user would pick instead, on real servers, in one run on one machine.

It is a program of the checkout and never part of the wheel; nothing in `relay` or `consumers` imports it.
"""

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]

# One launcher and one list of jars for the real Kafka: the tests' own, which is no package.
sys.path.append(str(ROOT / "tests" / "kafka"))
