"""Where a download may go, and the ways in which one ends badly. Pure: it never resolves a name; the client
hands the addresses in.
"""

from typing import ClassVar

from relay.errors import RelayError


class DownloadError(RelayError):
    """The base. `retriable`: the same URL may work later."""

    retriable: ClassVar[bool] = False


class OutputExpired(DownloadError):
    """403, 404 or 410: the URL is used up; observing the job may give a new one."""


class OutputCut(DownloadError):
    """The connection failed, the body was cut or the server is busy."""

    retriable = True


class OutputForbidden(DownloadError):
    """The URL, or one that it redirects to, is not https or leads to an address that is not public."""


class OutputTooLarge(DownloadError):
    """More bytes than the profile allows."""


class OutputRefused(DownloadError):
    """Any other answer that is not the file."""
