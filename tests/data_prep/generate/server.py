"""A chat-completions server in a thread that can misbehave, and requests for it."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from data_prep.generate import Endpoint, Request, Task

MODEL = "tiny"
KEY = "sk-do-not-show-7f3a"

NOTE = Task(
    name="note",
    version=1,
    prompt="Write down {number}.",
    schema=lambda inputs: {
        "type": "object",
        # not maxLength: under that vLLM lets control characters into a string as they are, which is not JSON
        "properties": {"note": {"type": "string", "pattern": "^[A-Za-z0-9 .]{0,40}$"}},
        "required": ["note"],
        "additionalProperties": False,
    },
    problem=lambda inputs, answer: None,
    needs=("number",),
    answer_tokens=lambda inputs: 8,
)


def notes(count: int, task: Task = NOTE) -> list[Request]:
    return [Request(task, {"number": number}) for number in range(count)]


def good_note(number: int) -> dict[str, str]:
    return {"note": f"Write down {number}. Done."}


@dataclass(frozen=True)
class Call:
    """One request as it arrived."""

    body: dict[str, Any]
    authorization: str
    path: str
    time: float

    @property
    def prompt(self) -> str:
        return self.body["messages"][0]["content"]


Behaviour = Callable[[BaseHTTPRequestHandler, Call], None]


def completion(text: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None, **headers: str
) -> None:
    """A response, of whose body there is less than it says where `length` is given."""
    handler.send_response(status)
    for name, value in {"content-type": "application/json", **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("content-length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def say(text: str | None, finish_reason: str = "stop") -> Behaviour:
    return lambda handler, call: send(handler, 200, json.dumps(completion(text, finish_reason)).encode())


def answer_well(handler: BaseHTTPRequestHandler, call: Call) -> None:
    say(json.dumps({"note": call.prompt + " Done."}))(handler, call)


def status(code: int, message: str = "no", error_code: str | None = None, **headers: str) -> Behaviour:
    body = json.dumps({"error": {"message": message, "code": error_code}}).encode()
    return lambda handler, call: send(handler, code, body, **headers)


def raw(body: bytes, **headers: str) -> Behaviour:
    return lambda handler, call: send(handler, 200, body, **headers)


def hang_up(handler: BaseHTTPRequestHandler, call: Call) -> None:
    """Ends the connection with a reset, before any response."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def hang_up_halfway(handler: BaseHTTPRequestHandler, call: Call) -> None:
    """Ends the connection in the middle of a good response."""
    body = json.dumps(completion(json.dumps({"note": "half"}))).encode()
    send(handler, 200, body[: len(body) // 2], length=len(body))
    handler.close_connection = True


def trickle(handler: BaseHTTPRequestHandler, call: Call) -> None:
    """A response that never ends, a space every 20 ms."""
    send(handler, 200, b"", length=10**6)
    for _ in range(500):
        try:
            handler.wfile.write(b" ")
        except OSError:
            break
        time.sleep(0.02)
    handler.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: clients that break off are part of the tests."""


@dataclass
class ChatServer:
    """Answers the n-th call (from 0) with `script(n, call)`, or well where there is no script."""

    script: Callable[[int, Call], Behaviour] = lambda number, call: answer_well
    calls: list[Call] = field(default_factory=list)
    most_at_once: int = 0

    def __enter__(self) -> "ChatServer":
        self._lock = threading.Lock()
        self._running = 0
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def endpoint(self, **settings: Any) -> Endpoint:
        usual: dict[str, Any] = {"base_url": self.url, "model": MODEL, "concurrency": 4, "timeout": 20}
        return Endpoint(**usual | settings)

    def prompts(self) -> list[str]:
        return [call.prompt for call in self.calls]

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["content-length"])
        body = json.loads(handler.rfile.read(length))
        call = Call(body, handler.headers.get("authorization", ""), handler.path, time.monotonic())
        with self._lock:
            self.calls.append(call)
            number = len(self.calls) - 1
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
        try:
            self.script(number, call)(handler, call)
        except OSError:
            handler.close_connection = True  # the client has gone
        finally:
            with self._lock:
                self._running -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        serve = self._serve

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                serve(self)

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    self.close_connection = True  # closed on purpose

            def log_message(self, format: str, *arguments: Any) -> None:
                """Silent."""

        return Handler
