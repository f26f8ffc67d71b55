"""Serving one file once to ui.perfetto.dev in a browser on this machine.

The page may fetch from port 9001 of the loopback interface, where Perfetto's own tools serve traces too. Any page in
the browser, and any user of the machine, can also reach that port. So each request is checked. Its header ``Host`` must
name this server, because a page of a name that resolves to 127.0.0.1 sends its own name. The request must come from
ui.perfetto.dev or from no page. Its path must be the only valid path, which cannot be guessed. The file is opened
before the first request, so no request can choose a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from .errors import CutraceError
from .outputs import open_to_read, read_at

UI = "https://ui.perfetto.dev"
#: The only port that the page may fetch from, unless a flag of the page is set.
PORT = 9001
#: Plugins of the page for GPU compute. They are off unless a link turns them on.
PLUGINS = ("com.meta.GpuCompute", "dev.perfetto.GpuByProcess")

_HOST = "127.0.0.1"
_METHODS = ("GET", "HEAD", "OPTIONS")
# Browsers send a few hundred bytes.
_MAX_HEADER = 16 << 10
_MAX_CONNECTIONS = 64
_CHUNK = 1 << 16
# The slowest client (bytes/s). A client that reads less on the loopback interface counts as stuck.
_MIN_RATE = 1 << 20


class Server:
    """A server of the file ``path`` on the loopback interface, until the file was fetched.

    ``patience`` is the time in seconds for a client to send its request, and to read the file beyond the time for its
    size. ``shown`` has further parameters of the link. Raises :class:`CutraceError` when the file cannot be read or the
    port is taken.
    """

    def __init__(
        self,
        path: Path,
        *,
        port: int = PORT,
        patience: float = 10.0,
        shown: Mapping[str, str] = {},
    ) -> None:
        if not 0 <= port < 1 << 16:
            raise CutraceError(f"there is no port {port}: choose one from 0 to 65535")
        self._shown = shown
        self._patience = patience
        self._fetched = threading.Event()
        self._closed = False
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        try:
            self._file = open_to_read(path)
        except OSError as error:
            raise CutraceError(
                f"cannot read {path}: {error.strerror}. Look at its name and permissions."
            ) from None
        self._size = os.fstat(self._file).st_size
        # The page shows the last part of the path as the name of the trace.
        self.path = f"/{secrets.token_urlsafe(16)}/{_plain(path.name)}"
        try:
            self._socket = socket.create_server((_HOST, port), backlog=_MAX_CONNECTIONS)
        except OSError as error:
            os.close(self._file)
            raise _taken(port, error) from None
        self._socket.settimeout(0.1)
        self.port: int = self._socket.getsockname()[1]

    @property
    def link(self) -> str:
        """The address to open: the page with the file, the required plugins, and the first view as parameters."""
        file = quote(f"http://{_HOST}:{self.port}{self.path}", safe=":/")
        other = "" if self.port == PORT else f"&rpc_port={self.port}"
        for name, value in self._shown.items():
            other += f"&{name}={quote(value, safe='')}"
        return f"{UI}/#!/?url={file}&enablePlugins={','.join(PLUGINS)}{other}"

    def serve(self, timeout: float) -> bool:
        """Answer requests. Returns True when the whole file was fetched. Returns False after ``timeout`` seconds
        without an open connection, or when the server is closed."""
        deadline = time.monotonic() + timeout
        busy: list[threading.Thread] = []
        while not self._fetched.is_set():
            busy = [thread for thread in busy if thread.is_alive()]
            if time.monotonic() > deadline and not busy:
                return False
            try:
                client, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if self._closed:
                    return False
                if error.errno in (
                    errno.ECONNABORTED,
                    errno.EMFILE,
                    errno.ENFILE,
                    errno.EINTR,
                ):
                    time.sleep(0.01)
                    continue
                raise
            if not self._free.acquire(blocking=False):
                client.close()
                continue
            thread = threading.Thread(target=self._answer, args=(client,), daemon=True)
            busy.append(thread)
            thread.start()
        return True

    def close(self) -> None:
        """Stop listening. A client that is being served may still get its answer."""
        self._closed = True
        self._socket.close()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One client

    def _answer(self, client: socket.socket) -> None:
        try:
            with client:
                deadline = time.monotonic() + self._patience
                try:
                    request = _request(client, deadline)
                    status = self._status(request)
                except _Refused as refused:
                    request = None
                    status = refused.status
                self._send_head(client, request, status)
                if status == 200 and request is not None and request.method == "GET":
                    self._send_file(client)
                    self._fetched.set()
                else:
                    _drain(client)
        except OSError:
            pass  # The client has gone, or is too slow. Serve the others.
        finally:
            self._free.release()

    def _status(self, request: _HttpRequest) -> int:
        hosts = (f"{_HOST}:{self.port}", f"localhost:{self.port}")
        if request.headers.get("host") not in [[host] for host in hosts]:
            return 403
        if request.headers.get("origin") not in (None, [UI]):
            return 403
        if not secrets.compare_digest(request.path.encode(), self.path.encode()):
            return 404
        if request.method not in _METHODS:
            return 405
        if request.method == "OPTIONS":
            return 204
        return 200

    def _send_head(
        self, client: socket.socket, request: _HttpRequest | None, status: int
    ) -> None:
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Connection: close",
            "Cache-Control: no-store",
            "X-Content-Type-Options: nosniff",
            f"Content-Length: {self._size if status == 200 else 0}",
        ]
        if status in (200, 204):
            lines += [
                f"Access-Control-Allow-Origin: {UI}",
                "Vary: Origin",
                "Content-Type: application/octet-stream",
            ]
        if status == 204 and request is not None:
            lines += [f"Access-Control-Allow-Methods: {', '.join(_METHODS)}"]
            if request.headers.get("access-control-request-private-network") == [
                "true"
            ]:
                lines += ["Access-Control-Allow-Private-Network: true"]
        if status == 405:
            lines += [f"Allow: {', '.join(_METHODS)}"]
        client.settimeout(self._patience)
        client.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))

    def _send_file(self, client: socket.socket) -> None:
        deadline = time.monotonic() + self._patience + self._size / _MIN_RATE
        # Use a separate descriptor, because the server may be closed while a client is still served.
        with os.fdopen(os.dup(self._file), "rb", buffering=0) as file:
            at = 0
            while at < self._size:
                data = read_at(file.fileno(), min(_CHUNK, self._size - at), at)
                if not data:
                    raise OSError(errno.EIO, "the file became shorter")
                client.settimeout(_left(deadline))
                client.sendall(data)
                at += len(data)
        # A client closes its side when it has the whole file. After the deadline, the rest is in its buffer.
        client.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            client.settimeout(_left(deadline))
            while client.recv(4096):
                client.settimeout(_left(deadline))


class _HttpRequest(NamedTuple):
    """The request of a client, with all values of each of its ``headers`` by name, in lower case."""

    method: str
    path: str
    headers: dict[str, list[str]]


class _Refused(Exception):
    """An invalid request, with the status of its answer."""

    def __init__(self, status: int) -> None:
        self.status = status


_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]+) HTTP/1\.[01]")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t]*?)[ \t]*")


def _request(client: socket.socket, deadline: float) -> _HttpRequest:
    """Read the head of a request. Raises :class:`_Refused` when it is too long, too late, or malformed."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > _MAX_HEADER:
            raise _Refused(431)
        try:
            client.settimeout(_left(deadline))
            data = client.recv(4096)
        except TimeoutError:
            raise _Refused(408) from None
        if not data:
            raise ConnectionResetError
        head += data
    first, *lines = head.partition(b"\r\n\r\n")[0].split(b"\r\n")
    start = _LINE.fullmatch(first)
    fields = [_FIELD.fullmatch(line) for line in lines]
    if len(head) > _MAX_HEADER:
        raise _Refused(431)
    if start is None or None in fields:
        raise _Refused(400)
    headers: dict[str, list[str]] = {}
    for field in filter(None, fields):
        headers.setdefault(field[1].decode().lower(), []).append(field[2].decode())
    return _HttpRequest(start[1].decode(), start[2].decode(), headers)


def _left(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError after it."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _drain(client: socket.socket) -> None:
    """Let the client read the answer first: closing the connection resets it if the client still sends."""
    client.shutdown(socket.SHUT_WR)
    client.settimeout(0.5)
    with contextlib.suppress(OSError):
        client.recv(1 << 16)


def _plain(name: str) -> str:
    """Return a file name that needs no encoding in an address."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip(".") or "trace"


def _taken(port: int, error: OSError) -> CutraceError:
    if error.errno == errno.EADDRINUSE:
        return CutraceError(
            f"port {port} of this machine is in use, by another `cutrace open` or a trace_processor: end that, or "
            "choose another port with `port=`"
        )
    return CutraceError(
        f"cannot listen on port {port} of this machine: {error.strerror}. Choose another with `port=`."
    )
