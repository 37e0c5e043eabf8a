"""Where the shipped contracts are: Avro schemas and SQL migrations. It reads no file itself."""

from pathlib import Path
from typing import Final


def _contracts() -> Path:
    package = Path(__file__).resolve().parent
    installed = package / "_contracts"
    return installed if installed.is_dir() else package.parent / "schemas"


CONTRACTS: Final = _contracts()
AVRO: Final = CONTRACTS / "avro"
"""Folder of ``<event_type>/v<N>.avsc``."""
POSTGRES: Final = CONTRACTS / "postgres"
"""Folder of ``NNNN_name.sql`` migrations."""
