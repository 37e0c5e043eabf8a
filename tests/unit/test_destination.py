"""Where a download may go."""

import pytest

from consumers.providers.destination import OutputForbidden, is_public, origin, require_https, require_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "192.0.2.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
        "::7f00:1",
        "::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "100::1",
        "2001::1",
        "2001:20::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "192.88.99.1",
        "192.0.0.8",
        "192.0.0.170",
        "198.18.0.1",
        "240.0.0.1",
        "not an address",
        "",
    ],
)
def test_an_address_that_is_not_global_unicast_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_global_address_is_public(address: str) -> None:
    assert is_public(address)


def test_one_private_address_among_public_ones_is_enough() -> None:
    with pytest.raises(OutputForbidden, match=r"10\.0\.0\.1"):
        require_public("https://cdn.example/x", ["8.8.8.8", "10.0.0.1"])
    with pytest.raises(OutputForbidden, match="no address"):
        require_public("https://cdn.example/x", [])
    require_public("https://cdn.example/x", ["8.8.8.8"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://CDN.example/a?b", "https://cdn.example:443"),
        ("http://cdn.example:8080/", "http://cdn.example:8080"),
        ("https://[2606:4700::1]/x", "https://[2606:4700::1]:443"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://a/b",
        "//a/b",
        "",
        "https://",
        "https://u:p@a/",
        "https://a:port/",
        "https://[::1",
    ],
)
def test_what_is_not_a_plain_http_url_is_forbidden(url: str) -> None:
    with pytest.raises(OutputForbidden):
        origin(url)


def test_plain_http_is_forbidden() -> None:
    with pytest.raises(OutputForbidden, match="allowed_origins"):
        require_https("http://cdn.example/x")
