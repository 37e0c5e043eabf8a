"""Who it is that asks: written wherever a person decides something."""

import getpass
import socket


def who() -> str:
    """The person at this machine, as journal, ledger and parked events name them."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
