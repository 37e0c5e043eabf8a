"""Where a download may go, and the ways in which one ends badly. Pure: it never resolves a name; who
downloads hands the addresses in.
"""

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
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
_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
"""All that IANA has given out of IPv6 (RFC 4291, 2.4). Python calls some of the rest global: ::7f00:1."""
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        # Special-purpose blocks that some releases of Python call global: 6to4 relays (RFC 7526), IETF
        # protocol assignments, documentation (RFC 9637).
        ("192.88.99.0/24", "192.0.0.0/24", "2001::/23", "3fff::/20"),
    )
)


class DownloadError(RelayError):
    """The base. `retriable`: the same URL may work later."""

    retriable: ClassVar[bool] = False


class OutputExpired(DownloadError):
    """403, 404 or 410: the URL is used up; observing the job may give a new one."""


class OutputCut(DownloadError):
    """The connection failed, the body was cut or the server is busy."""

    retriable = True


class OutputUnconnected(OutputCut):
    """No connection came about: another address of the host may answer."""


class OutputForbidden(DownloadError):
    """The URL, or one that it redirects to, is not https or leads to an address that is not public."""


class OutputTooLarge(DownloadError):
    """More bytes than the profile allows."""


class OutputRefused(DownloadError):
    """Any other answer that is not the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Where one download may go, and how much it may take. Times in seconds. `allowed` are origins that need
    be neither https nor public; `own_headers` go to `own_origin` and to no other."""

    allowed: frozenset[str] = frozenset()
    own_origin: str | None = None
    own_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    limit_bytes: int
    deadline_s: float
    redirects: int
    connect_s: float
    tls: ssl.SSLContext | None = None
    """Whom to trust; None: public authorities, or those of SSL_CERT_FILE."""


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
        inner = parsed.ipv4_mapped or parsed.sixtofour
        if parsed in _NAT64:
            inner = ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if parsed not in _GLOBAL_UNICAST:
            return False
    if any(parsed in block for block in _NOT_PUBLIC if block.version == parsed.version):
        return False
    return parsed.is_global and not parsed.is_multicast
