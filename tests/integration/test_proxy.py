"""The proxy that stands for the network in other tests does to connections what its methods say."""

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from fix_proxy import TcpProxy

_PATIENCE_S = 30.0
# Long enough that an echo over loopback would have come; only a test that expects silence waits for it.
_SILENCE_S = 0.2


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it gets; yields its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return  # a cut is what these tests make

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed at teardown
            thread = threading.Thread(target=serve, args=(connection,), daemon=True)
            thread.start()
            threads.append(thread)

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join(_PATIENCE_S)


@pytest.fixture
def proxy(echo: int, tcp_proxy: Callable[[str, int], TcpProxy]) -> TcpProxy:
    return tcp_proxy("127.0.0.1", echo)


def _connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection((proxy.host, proxy.port), timeout=_PATIENCE_S)


def _receive(client: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (data := client.recv(count - len(received))):
        received += data
    return received


def _silent(client: socket.socket) -> bool:
    client.settimeout(_SILENCE_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(_PATIENCE_S)
    return False


def test_bytes_pass_unchanged_and_are_counted(proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 4096
    with _connect(proxy) as client:
        threading.Thread(target=client.sendall, args=(sent,)).start()
        assert _receive(client, len(sent)) == sent
    assert (proxy.accepted, proxy.bytes_to_server, proxy.bytes_to_client) == (1, len(sent), len(sent))


def test_an_end_of_one_side_reaches_the_other(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        client.sendall(b"last words")
        client.shutdown(socket.SHUT_WR)
        assert _receive(client, 100) == b"last words"


def test_a_pause_holds_bytes_and_loses_none(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        proxy.pause()
        client.sendall(b"held")
        assert _silent(client)
        proxy.resume()
        assert _receive(client, 4) == b"held"


def test_a_pause_of_one_direction_lets_the_other_pass(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        proxy.pause("to_client")
        client.sendall(b"held")
        proxy.wait_until(lambda seen: seen.bytes_to_server == 4)
        assert _silent(client)
        proxy.resume()
        assert _receive(client, 4) == b"held"


def test_a_cut_resets_connections_and_refuses_new_ones(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        proxy.wait_until(lambda seen: seen.accepted == 1)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        _connect(proxy)
    proxy.resume()
    with _connect(proxy) as client:
        client.sendall(b"healed")
        assert _receive(client, 6) == b"healed"


def test_a_black_hole_swallows_and_its_connection_never_heals(proxy: TcpProxy) -> None:
    with _connect(proxy) as client:
        proxy.blackhole("to_client")
        client.sendall(b"lost")
        proxy.wait_until(lambda seen: seen.bytes_to_server == 4)
        assert _silent(client)
        proxy.resume()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_server_that_is_away_gives_a_reset(tcp_proxy: Callable[[str, int], TcpProxy]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        proxy = tcp_proxy("127.0.0.1", unused.getsockname()[1])
        # The reset may come before connect() has returned or after.
        with pytest.raises(ConnectionResetError), _connect(proxy) as client:
            client.recv(1)
