"""Object storage for tests: moto's S3 server in this process, and a server before it that fails as storage does."""

import contextlib
import http.client
import http.server
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "brokers"


class S3:
    """An S3 server. ``environment`` is what leads its clients to it."""

    def __init__(self, address: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.address = address
        self.client: Any = boto3.client(
            "s3", endpoint_url=f"http://{address}", aws_access_key_id="a", aws_secret_access_key="b",
            region_name="us-east-1",
        )  # fmt: skip
        self._stored: set[str] = set()

    def put(self, store: Path, name: str) -> str:
        """Store all files below a folder, once, and return its URL."""
        if name not in self._stored:
            for path in sorted(store.rglob("*")):
                if path.is_file():
                    key = f"{name}/{path.relative_to(store).as_posix()}"
                    self.client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())
            self._stored.add(name)
        return f"s3://{BUCKET}/{name}"


@contextlib.contextmanager
def s3_server() -> Iterator[S3]:
    """Run one, with an empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        found = S3(f"{host}:{port}")
        found.client.create_bucket(Bucket=BUCKET)
        yield found
    finally:
        server.stop()


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class FaultyServer(http.server.ThreadingHTTPServer):
    """Hands requests on to an S3 server. ``faults`` are what happens to the next requests for bytes, one each.

    A fault is a status that is answered, ``cut`` (the connection breaks in the middle of the answer) or ``stall`` (so
    does it before the answer). ``sizes`` are those of the answers that were given.
    """

    daemon_threads = True

    def __init__(self, address: str) -> None:
        super().__init__(("127.0.0.1", 0), _StorageHandler)
        self.upstream = address
        self.faults: list[int | str] = []
        self.sizes: list[int] = []
        self.head_count = 0
        self.lock = threading.Lock()
        self.before_get: Any = lambda: None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.server_port}"


class _StorageHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        is_bytes = "Range" in self.headers
        fault: int | str | None = None
        if is_bytes:
            with self.server.lock:
                self.server.before_get()
                fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            if fault == 416:
                body = b"<Error><Code>InvalidRange</Code><Message>The range cannot be had.</Message></Error>"
            self.send_response(fault)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        if fault == "stall":
            self.close_connection = True
            return
        if self.command == "HEAD":
            with self.server.lock:
                self.server.head_count += 1
        connection = http.client.HTTPConnection(self.server.upstream)
        connection.request(self.command, self.path, headers=dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "server", "date", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        if is_bytes:
            self.server.sizes.append(len(data))
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_GET  # noqa: N815


@contextlib.contextmanager
def faulty_server(address: str) -> Iterator[FaultyServer]:
    """Run one before the S3 server at an address."""
    server = FaultyServer(address)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
