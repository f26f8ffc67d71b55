"""An HTTP server that opens and closes windows for its clients, like servers of language models. Each request has a
separate thread. Programs that tests start import this module; it imports neither cutrace nor the fake GPU.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Calls a function for each path: ``/start_profile``, ``/stop_profile``, and ``/generate/NAME`` with the name as
    argument."""

    def __init__(self, start: Callable[[], object], stop: Callable[[], object], work: Callable[[str], object]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                _, verb, *names = self.path.split("/")
                if verb == "start_profile":
                    start()
                elif verb == "stop_profile":
                    stop()
                else:
                    work(names[0])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def post(self, path: str) -> None:
        """Make a request and wait for its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_port, timeout=60)
        connection.request("POST", path)
        assert connection.getresponse().status == 200
        connection.close()

    def profile(self, name: str) -> None:
        """Open one window with a request inside it. There is also a request before it and one after it."""
        self.post("/generate/outside")
        self.post("/start_profile")
        self.post(f"/generate/{name}")
        self.post("/stop_profile")
        self.post("/generate/outside")
