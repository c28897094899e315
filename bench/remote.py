"""A store in S3 against plain parallel downloads of the same objects, by the same client from the same server.

The server is of this file, for none that emulates a storage is as fast as its client: it answers listings, heads and
ranges of files in the page cache, by ``sendfile``, in a process of its own. The client is s3fs both times; each
measurement is a process, of which the work counts and not the start. A download throws away what comes: whole objects
at once, and ranges of 8 MiB of which twelve are on their way, of which the faster counts.
"""

import contextlib
import hashlib
import http.server
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.sax.saxutils import escape

from bench.stores import make_store
from bench.table import Row, rate

LOG_SIZE = 4 << 30
RUNS = 5
_BUCKET = "bench"
_RANGE = 8 << 20
_AT_ONCE = 12


def measure_remote(folder: Path, log_size: int = LOG_SIZE) -> list[Row]:
    """Return the rows; the store is made in ``folder``, or found there from the last run."""
    root = folder / f"store-remote-{log_size >> 20}"
    if not (root / "checkpoint").exists():
        make_store(root, 1024, log_size - (4 << 20))
    size = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    name = f"{log_size >> 30} GiB, 1 KiB bodies"
    with _server(folder) as address:
        took = {what: float("inf") for what in ("objects", "ranges", "scan", "verify")}
        for _ in range(RUNS):  # in turns: the machine drifts
            for what in took:
                took[what] = min(took[what], _seconds(what, address, root.name))
    plain = min(took["objects"], took["ranges"])
    return [
        Row("limit: parallel downloads of the log", name, rate(size, plain), "1.00", ""),
        Row("stats of a store in S3", name, rate(size, took["scan"]), f"{plain / took['scan']:.2f}", "≥ 0.7"),
        Row("verify of its log", name, rate(size, took["verify"]), f"{plain / took['verify']:.2f}", ""),
    ]


def _seconds(what: str, address: str, name: str) -> float:
    """Return what some work took, in a process of its own."""
    words = [sys.executable, "-m", "bench.remote", what, name]
    account = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
    values = os.environ | account | {"AWS_ENDPOINT_URL": f"http://{address}"}
    done = subprocess.run(words, capture_output=True, text=True, env=values)
    if done.returncode:
        raise AssertionError(f"{words} ended with {done.returncode}: {done.stderr[-2000:]}")
    return float(done.stdout)


def _run(what: str, name: str) -> float:
    if what in ("objects", "ranges"):
        return _download(what, name)
    from mqtool.engine.repair.verify.store import verify_store
    from mqtool.engine.store.reader import StoreReader
    from mqtool.engine.store.stats import By, Selection, count_messages
    from mqtool.formats import scan

    scan.compiled_kernels()
    jobs = len(os.sched_getaffinity(0))
    url = f"s3://{_BUCKET}/{name}"
    import s3fs  # noqa: F401 - a start that does not count

    start = time.perf_counter()
    if what == "verify":
        if any(found.severity != "note" for found in verify_store(StoreReader(f"{url}/commitlog"), jobs=jobs)):
            raise AssertionError("the store of the benchmark is not sound")
    else:
        reader = StoreReader(url)
        count_messages(reader, By.TOPIC, Selection(), 0, reader.commit_log.end_offset, jobs)
    return time.perf_counter() - start


def _download(what: str, name: str) -> float:
    import s3fs

    start = time.perf_counter()
    storage = s3fs.S3FileSystem(config_kwargs={"max_pool_connections": 64}, use_listings_cache=False)
    segments = storage.ls(f"{_BUCKET}/{name}/commitlog", detail=True)
    pieces = []
    for one in segments:
        step = _RANGE if what == "ranges" else one["size"]
        pieces += [(one["name"], at, min(at + step, one["size"])) for at in range(0, one["size"], step)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        got = sum(pool.map(lambda piece: len(storage.cat_file(piece[0], start=piece[1], end=piece[2])), pieces))
    assert got == sum(one["size"] for one in segments)
    return time.perf_counter() - start


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[str]:
    words = [sys.executable, "-m", "bench.remote", "serve", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


class _Handler(http.server.BaseHTTPRequestHandler):
    """As much of S3 as reading takes, without accounts; the bucket is a folder."""

    protocol_version = "HTTP/1.1"
    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
        key = urllib.parse.unquote(parts.path).lstrip("/").partition("/")[2]
        if not key:
            return self._list(query.get("prefix", ""), query.get("delimiter", ""))
        path = self.folder / key
        if not path.is_file():
            return self._send(404, b"")
        size = path.stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or size - 1), size - 1) + 1
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
        self.send_header("ETag", f'"{_tag(path)}"')
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.end_headers()
        self.wfile.flush()
        if with_body:
            with path.open("rb") as file:
                while start < stop:
                    start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)
        return None

    def _list(self, prefix: str, delimiter: str) -> None:
        keys = sorted(
            path.relative_to(self.folder).as_posix()
            for path in (self.folder / prefix.rpartition("/")[0]).rglob("*")
            if path.is_file()
        )
        found, folders = [], set()
        for key in keys:
            if key.startswith(prefix):
                rest = key.removeprefix(prefix)
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    found.append(key)
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{(self.folder / key).stat().st_size}</Size><ETag>&quot;"
            f"{_tag(self.folder / key)}&quot;</ETag><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
            for key in found
        ]
        rows += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        count = f"<KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
        self._send(200, f"<ListBucketResult>{count}{''.join(rows)}</ListBucketResult>".encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(path: Path) -> str:
    status = path.stat()
    return hashlib.md5(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()


def _serve(folder: Path) -> None:
    _Handler.folder = folder
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    print(f"127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(Path(sys.argv[2]))
    else:
        print(_run(*sys.argv[1:3]))
