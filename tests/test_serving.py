"""The local server sends one file, only to ui.perfetto.dev, and no client can block it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from cutrace.errors import CutraceError
from cutrace.serving import Server

UI = "https://ui.perfetto.dev"
CONTENT = bytes(range(256)) * 5000


class Running:
    """A server in a thread. ``fetched`` is the result of :meth:`Server.serve`."""

    def __init__(self, server: Server, timeout: float = 20) -> None:
        self.server = server
        self.fetched: bool | None = None
        self._thread = threading.Thread(target=self._serve, args=(timeout,), daemon=True)
        self._thread.start()

    def _serve(self, timeout: float) -> None:
        self.fetched = self.server.serve(timeout)

    def ended(self, within: float = 10) -> bool | None:
        self._thread.join(within)
        assert not self._thread.is_alive(), "still serving"
        return self.fetched

    @property
    def serving(self) -> bool:
        return self._thread.is_alive()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "run.pftrace").write_bytes(CONTENT)
    (tmp_path / "secret.txt").write_text("secret")
    with Server(tmp_path / "run.pftrace", port=0, patience=1.0) as server:
        yield Running(server)


def ask(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes and read the whole answer: status, headers, body."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        while data := client.recv(1 << 16):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, body


def get(
    server: Server, *, method: str = "GET", path: str | None = None, host: str | None = None, origin: str | None = UI,
    more: str = "",
) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    lines = [f"{method} {path or server.path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{server.port}'}"]
    lines += [f"Origin: {origin}"] if origin else []
    return ask(server.port, ("\r\n".join(lines) + "\r\n" + more + "\r\n").encode())


def test_the_page_gets_the_file_and_the_server_ends(running):
    status, headers, body = get(running.server)
    assert (status, body) == (200, CONTENT)
    assert headers["access-control-allow-origin"] == UI
    assert headers["cache-control"] == "no-store"
    assert running.ended() is True


def test_a_program_without_an_origin_gets_it_too(running):
    assert get(running.server, origin=None, host=f"localhost:{running.server.port}")[2] == CONTENT
    assert running.ended() is True


def test_asking_for_the_head_or_the_options_is_not_fetching(running):
    status, headers, body = get(running.server, method="HEAD")
    assert (status, body, headers["content-length"]) == (200, b"", str(len(CONTENT)))
    more = "Access-Control-Request-Method: GET\r\nAccess-Control-Request-Private-Network: true\r\n"
    status, headers, body = get(running.server, method="OPTIONS", more=more)
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-private-network"] == "true"
    assert headers["access-control-allow-methods"] == "GET, HEAD, OPTIONS"
    assert running.serving
    assert get(running.server)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["attacker.example:{port}", "attacker.example", "127.0.0.1", "127.0.0.1:1", "localhost", "0.0.0.0:{port}",
     "127.0.0.1:{port}.attacker.example", "[::1]:{port}", "{port}"],
)  # fmt: skip
def test_a_name_that_was_made_to_mean_this_machine_is_refused(running, host):
    status, headers, body = get(running.server, host=host.format(port=running.server.port))
    assert (status, body) == (403, b"")
    assert "access-control-allow-origin" not in headers
    assert running.serving


def test_a_request_names_its_host_once(running):
    server = running.server
    good = f"Host: 127.0.0.1:{server.port}\r\n"
    for hosts in ("", good + "Host: attacker.example\r\n", "Host: attacker.example\r\n" + good, good + good):
        assert ask(server.port, f"GET {server.path} HTTP/1.1\r\n{hosts}\r\n".encode())[0] == 403


@pytest.mark.parametrize(
    "origin",
    ["https://attacker.example", "http://ui.perfetto.dev", "https://ui.perfetto.dev.attacker.example", "null",
     "https://ui.perfetto.dev:8443", "http://127.0.0.1:9001", "https://UI.perfetto.dev "],
)  # fmt: skip
def test_other_pages_are_refused(running, origin):
    for method in ("GET", "HEAD", "OPTIONS"):
        status, headers, body = get(running.server, origin=origin, method=method)
        assert (status, body) == (403, b"")
        assert "access-control-allow-origin" not in headers
    assert running.serving


def test_a_path_that_was_not_told_is_not_there(running):
    server = running.server
    token, name = server.path.split("/")[1:]
    for path in ("/", f"/{name}", f"/{token}", f"/{token}/", f"/{token[:-1]}/{name}", f"{server.path}/",
                 f"{server.path}?x",
                 "/run.pftrace", "/status", "*", f"http://127.0.0.1:{server.port}{server.path}"):  # fmt: skip
        assert get(server, path=path)[0] == 404, path
    assert running.serving
    assert len(token) >= 22, "128 bits"


def test_paths_that_leave_the_folder_are_not_there(running):
    server = running.server
    folder = server.path.rpartition("/")[0]
    for path in (
        f"{folder}/../secret.txt",
        f"{folder}/secret.txt",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        f"{folder}/%2e%2e/{server.path}",
        "//etc/passwd",
        "/etc/passwd",
        f"{server.path}%00",
        f"{folder}/./run.pftrace",
    ):
        status, _, body = get(server, path=path)
        assert (status, body) == (404, b""), path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE", "PROPFIND"])
def test_other_methods_are_refused(running, method):
    status, headers, body = get(running.server, method=method, more="Content-Length: 0\r\n")
    assert (status, body, headers["allow"]) == (405, b"", "GET, HEAD, OPTIONS")
    assert running.serving


@pytest.mark.parametrize(
    "request_",
    [b"\r\n\r\n", b"GET\r\n\r\n", b"GET /  HTTP/1.1\r\n\r\n", b"get / HTTP/1.1\r\n\r\n", b"GET / HTTP/2\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n", b"GET / HTTP/1.1\r\n Host: x\r\n\r\n",
     b"\x16\x03\x01\x02\x00\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/1.1\nHost: x\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_is_refused(running, request_):
    assert ask(running.server.port, request_)[0] == 400
    assert running.serving


def test_endless_headers_are_cut_off(running):
    more = "".join(f"X-{i}: {'a' * 1000}\r\n" for i in range(40))
    with contextlib.suppress(ConnectionError):  # the server may have answered and closed the connection early
        assert get(running.server, more=more)[0] == 431
    assert running.serving
    assert get(running.server)[0] == 200


def test_clients_that_say_nothing_hold_up_nobody(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(CONTENT)
    with Server(tmp_path / "a.pftrace", port=0, patience=60) as server:
        running = Running(server, timeout=60)
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10)]
        # The answer must not wait for the time limit of the other clients, which is a minute.
        assert get(server, method="HEAD")[0] == 200
        assert select.select(silent, [], [], 0)[0] == []
        for client in silent:
            client.close()
        assert running.serving


def test_clients_that_say_nothing_or_too_little_are_let_go(running):
    port = running.server.port
    silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(10)]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as dripping:
        dripping.sendall(b"GET /")
        # A request may take one second, even if it sends a byte from time to time. With more time, the server would
        # refuse its length.
        with contextlib.suppress(ConnectionError):
            while not select.select([dripping], [], [], 0.02)[0]:
                dripping.sendall(b"a")
        assert dripping.recv(100).startswith(b"HTTP/1.1 408 ")
    for client in silent:
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        client.close()
    assert running.serving


def test_a_client_that_does_not_take_the_file_is_let_go_and_it_is_not_fetched(tmp_path):
    (tmp_path / "large.pftrace").touch()
    with (tmp_path / "large.pftrace").open("wb") as file:
        file.truncate(8 << 20)
    with Server(tmp_path / "large.pftrace", port=0, patience=0.2) as server:
        running = Running(server)
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(f"GET {server.path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        assert slow.recv(10)
        time.sleep(0.5)
        slow.close()
        assert running.serving
        assert len(get(server)[2]) == 8 << 20
        assert running.ended() is True


def test_more_clients_than_it_serves_are_sent_away(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(CONTENT)
    with Server(tmp_path / "a.pftrace", port=0, patience=60) as server:
        running = Running(server, timeout=60)
        many = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(100)]
        waiting, _, _ = select.select(many, [], [], 10)
        deadline = time.monotonic() + 10
        while len(waiting) < 36 and time.monotonic() < deadline:
            waiting, _, _ = select.select(many, [], [], 0.1)
        assert len(waiting) == 36, "64 may take their time"
        for client in many:
            client.close()
        while running.serving:
            with contextlib.suppress(OSError, IndexError):  # until the connections are closed
                assert get(server)[2] == CONTENT
        assert running.ended() is True


def test_it_listens_on_the_loopback_interface_only(running):
    assert running.server._socket.getsockname()[0] == "127.0.0.1"
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}:
        if not address.startswith("127."):
            with pytest.raises(OSError, match=r"refused|unreachable"):
                socket.create_connection((address, running.server.port), timeout=2)


def test_it_gives_up_when_nobody_comes(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(b"x")
    with Server(tmp_path / "a.pftrace", port=0) as server:
        began = time.monotonic()
        assert server.serve(0.3) is False
        assert time.monotonic() - began >= 0.3


def test_a_port_that_is_taken_is_said(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(b"x")
    with Server(tmp_path / "a.pftrace", port=0) as first:
        with pytest.raises(CutraceError) as raised:
            Server(tmp_path / "a.pftrace", port=first.port)
        assert str(raised.value).startswith(f"port {first.port} of this machine is in use")
        assert "with `port=`" in str(raised.value)


def test_a_port_is_free_again_at_once(tmp_path):
    (tmp_path / "a.pftrace").write_bytes(b"x")
    with Server(tmp_path / "a.pftrace", port=0) as first:
        running = Running(first)
        get(first)
        running.ended()
    Server(tmp_path / "a.pftrace", port=first.port).close()


def test_a_file_that_is_gone_meanwhile_is_served(running, tmp_path):
    (tmp_path / "run.pftrace").unlink()
    assert get(running.server)[2] == CONTENT


def test_a_file_that_cannot_be_read_is_said(tmp_path):
    with pytest.raises(CutraceError, match="No such file"):
        Server(tmp_path / "none.pftrace", port=0)


def test_the_link_names_the_file_and_the_plugins(tmp_path):
    """The page decodes the fragment of the link once. The fragment is an address with a query."""
    path = tmp_path / "a & b#c%20 ä.pftrace"
    path.write_bytes(b"x")
    with Server(path, port=0) as server:
        link = urlsplit(server.link)
        assert (link.scheme, link.netloc, link.path, link.query) == ("https", "ui.perfetto.dev", "/", "")
        page, _, query = link.fragment.partition("?")
        asked = parse_qs(query, strict_parsing=True)
        assert page == "!/"
        assert asked["url"] == [f"http://127.0.0.1:{server.port}{server.path}"]
        assert asked["enablePlugins"] == ["com.meta.GpuCompute,dev.perfetto.GpuByProcess"]
        assert asked["rpc_port"] == [str(server.port)], "another port than 9001 has to be told"
        assert unquote(server.path) == server.path
        assert server.path.endswith("/a_b_c_20_.pftrace")
