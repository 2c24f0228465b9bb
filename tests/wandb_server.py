"""As much of a wandb server as its client needs for a run and for a workspace, and the faults it may have.

On this machine alone.
"""

import contextlib
import gzip
import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FILE_STREAM = "file_stream"
"""What the requests with the rows of a run are called here; the others go by the name of their GraphQL operation."""
RESET = "reset"
"""The fault of a connection that is reset without an answer."""
OPERATIONS = ("UpsertBucket", "RunResumeStatus", "UpsertView2", "Viewer", "GetDefaultEntity")


class WandbServer(ThreadingHTTPServer):
    """Answers on a free port of the loopback device.

    Attributes:
        runs: for each run id the variables of the requests that made or continued it.
        rows: for each run id the rows of its history.
        exit_codes: for each run id that of its end.
        views: the variables of the requests that saved a workspace.
        asked: the names of all requests, in order.
        faults: for each kind of request what becomes of it: a status to answer with, None for no answer at all, or
            `RESET`.
            Kinds are `FILE_STREAM`, the names of GraphQL operations, and ``*`` for all.
        entities: users and teams that may save workspaces.
        default_entity: of the account that asks.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, list[dict[str, Any]]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.exit_codes: dict[str, int] = {}
        self.views: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.faults: dict[str, int | str | None] = {}
        self.entities = ["us"]
        self.default_entity: str | None = "us"
        self.closing = threading.Event()


@contextlib.contextmanager
def serving() -> Iterator[WandbServer]:
    """Run a server in a thread for as long as the block lasts."""
    with WandbServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        parts = self.path.split("/")
        kind = parts[-1]
        content = json.loads(body) if kind in ("graphql", FILE_STREAM) else {}  # what the client says of itself is not
        if kind == "graphql":
            kind = content.get("operationName") or next((name for name in OPERATIONS if name in content["query"]), "?")
        self.server.asked.append(kind)
        faults = self.server.faults
        if kind in faults or "*" in faults:
            self._fail(faults[kind] if kind in faults else faults["*"])
        elif parts[-1] == "graphql":
            self._answer(self._query(kind, content.get("variables") or {}))
        elif kind == FILE_STREAM:
            self._stream(parts[-2], content)
        else:
            self._answer({})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def _fail(self, status: int | str | None) -> None:
        if status is None:
            self.server.closing.wait()
        elif status == RESET:
            # Without time to linger, closing resets the connection.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        else:
            self._answer({"error": "the server is out of order"}, int(status))

    def _stream(self, run: str, content: dict[str, Any]) -> None:
        history = content.get("files", {}).get("wandb-history.jsonl", {"content": []})
        self.server.rows.setdefault(run, []).extend(json.loads(line) for line in history["content"])
        if (code := content.get("exitcode")) is not None:
            self.server.exit_codes[run] = code
        self._answer({"limits": {}})

    def _query(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "project", "name": "lipformer", "entity": {"id": "entity", "name": "us"}}
        known = {"id": "bucket", "displayName": "as before", "config": "{}", "historyLineCount": 0}
        match operation:
            case "UpsertBucket":
                run = variables["name"]
                inserted = run not in self.server.runs
                self.server.runs.setdefault(run, []).append(variables)
                bucket = {**known, "name": run, "project": project}
                return {"data": {"upsertBucket": {"bucket": bucket, "inserted": inserted}}}
            case "RunResumeStatus":
                tails = {"historyTail": "[]", "eventsTail": "[]", "logLineCount": 0, "eventsLineCount": 0}
                bucket = {**known, **tails, "name": variables["name"], "summaryMetrics": "{}"}
                return {"data": {"model": {**project, "bucket": {**bucket, "wandbConfig": '{"t": 1}'}}}}
            case "Viewer" | "GetDefaultEntity":
                viewer = {"id": "viewer", "username": "us", "entity": self.server.default_entity}
                return {"data": {"viewer": viewer}}
            case "UpsertView2" if variables["entityName"] in self.server.entities:
                self.server.views.append(variables)
                return {"data": {"upsertView": {"view": {"id": "view", "name": variables["name"]}, "inserted": True}}}
        return {"errors": [{"message": f"{operation} is not allowed here"}]}

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        with contextlib.suppress(OSError):  # the client may have given up
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *values: Any) -> None:
        """Say nothing."""
