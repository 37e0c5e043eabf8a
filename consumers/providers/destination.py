"""Where a download may go, and the ways in which one ends badly. Pure: it never resolves a name; the client
hands the addresses in.
"""

import ipaddress
from collections.abc import Sequence
from typing import ClassVar, Final
from urllib.parse import urlsplit

from relay.errors import RelayError

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ALLOW: Final = (
    "If it is meant, add it to download.allowed_origins of a profile of yours in RELAY_PROFILES, register"
    " that with `relay init`, and release the delivery."
)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
"""RFC 6052: an IPv4 address in its last 32 bits, reached through a translator."""


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


def origin(url: str) -> str:
    """``scheme://host:port`` of `url`, lower case, the port always there (RFC 6454, 4). Raises
    OutputForbidden for what is not an http or https URL, or has a user or password in it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise OutputForbidden(f"The output URL is not a URL: {error}.") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise OutputForbidden(
            f"The output URL's scheme is {parts.scheme!r}; only http and https are fetched."
        )
    if parts.username is not None or parts.password is not None:
        raise OutputForbidden("The output URL has a user or a password in it.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host.lower()}:{port or _DEFAULT_PORTS[parts.scheme]}"


def require_https(url: str) -> None:
    """Raises OutputForbidden unless `url` is https."""
    if not origin(url).startswith("https:"):
        raise OutputForbidden(
            f"The output's origin {origin(url)} is not https.",
            remedy=_ALLOW,
        )


def require_public(url: str, addresses: Sequence[str]) -> None:
    """Raises OutputForbidden unless each of `addresses`, which the host of `url` resolved to, is public. One
    private address among public ones is enough: which of them is used is not ours to choose."""
    private = [address for address in addresses if not is_public(address)]
    if private or not addresses:
        raise OutputForbidden(
            f"The output's origin {origin(url)} leads to {', '.join(private) or 'no address'},"
            " which is not public.",
            remedy=_ALLOW,
        )


def is_public(address: str) -> bool:
    """Whether `address` is a global unicast address (IANA special-purpose registries), also where it carries
    another one inside. What is not an address is not public."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo[1] if parsed.teredo else None)
        if parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if parsed.is_site_local:
            return False
    return parsed.is_global and not parsed.is_multicast
