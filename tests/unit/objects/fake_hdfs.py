"""A namenode and two datanodes that speak enough of WebHDFS, and fail as told."""

import json
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class FakeHdfs(ThreadingHTTPServer):
    """The namenode; datanodes are ports of the same process.

    Attributes:
        files: path -> (bytes, number of its last change).
        dead: whether the first datanode accepts no connections.
        safe_mode: how many requests to answer with a SafeModeException.
        lose_writes: how many files to say are written, and have empty, as Hadoop 2 does where closing fails.
        lose_renames: how many renames to do without an answer.
        operations: how often each was asked of the namenode.
        excluded: the ``excludedatanodes`` that were asked for.
        refuse: answer everything with this exception.
        room_bytes: what it says that there is.
        lost: paths of files that it says have no copy left; what is written again has one.
        fills_up: the first write finds that there is none any more.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {}
        self.dead = self.fills_up = False
        self.safe_mode = self.lose_renames = self.lose_writes = self.changes = 0
        self.excluded = []
        self.operations = Counter()
        self.refuse = ""
        self.lost = []
        self.room_bytes = 1 << 40
        self.lock = threading.RLock()
        self.good = ThreadingHTTPServer(("127.0.0.1", 0), _Datanode)
        self.good.daemon_threads = True
        self.good.namenode = self
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            self.closed_port = closed.getsockname()[1]
        for server in (self, self.good):
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"hdfs://127.0.0.1:{self.server_port}"

    def close(self):
        for server in (self, self.good):
            server.shutdown()
            server.server_close()

    def write(self, path, data):
        with self.lock:
            self.changes += 1
            self.files[path] = (data, self.changes)

    def is_folder(self, path):
        return any(name.startswith(path.rstrip("/") + "/") for name in self.files)

    def status(self, path, suffix):
        data, change = self.files.get(path, (b"", 0))
        kind = "FILE" if path in self.files else "DIRECTORY"
        return {
            "pathSuffix": suffix,
            "type": kind,
            "length": len(data),
            "modificationTime": change,
            "fileId": change,
        }


class _Base(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # an answer is two writes: the second would wait for 40 ms

    def log_message(self, *arguments):
        pass

    def answer(self, status, document=None, location=""):
        body = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def exception(self, status, name, message="as asked"):
        self.answer(status, {"RemoteException": {"exception": name, "message": message}})

    def asked(self):
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        return unquote(parts.path).removeprefix("/webhdfs/v1"), query


class _Handler(_Base):
    protocol_version = "HTTP/1.1"  # its connections are kept
    server: FakeHdfs

    def handle_any(self):
        server = self.server
        path, query = self.asked()
        with server.lock:
            if server.refuse:
                return self.exception(403, server.refuse)
            if server.safe_mode:
                server.safe_mode -= 1
                return self.exception(
                    403, "RetriableException", "SafeModeException: Name node is in safe mode"
                )
            if path == "/jmx":
                return self.answer(200, {"beans": [self.beans()]})
            server.operations[query["op"]] += 1
            return getattr(self, query["op"].lower())(path, query)

    def beans(self):
        node = {"xferaddr": "127.0.0.1:1", "remaining": self.server.room_bytes, "capacity": 1 << 40}
        nodes = json.dumps({"127.0.0.1:1": node, "127.0.0.1:2": {**node, "capacity": 0, "remaining": 0}})
        return {"LiveNodes": nodes, "Safemode": "", "CorruptFiles": json.dumps(self.server.lost)}

    do_GET = do_PUT = do_DELETE = handle_any

    def getfilestatus(self, path, query):
        if path not in self.server.files and not self.server.is_folder(path):
            return self.exception(404, "FileNotFoundException")
        return self.answer(200, {"FileStatus": self.server.status(path, "")})

    def getcontentsummary(self, path, query):
        if not self.server.is_folder(path):
            return self.exception(404, "FileNotFoundException")
        start = path.rstrip("/") + "/"
        found = sum(len(data) for name, (data, _) in self.server.files.items() if name.startswith(start))
        return self.answer(200, {"ContentSummary": {"length": found}})

    def liststatus(self, path, query):
        server = self.server
        if path in server.files:
            return self.answer(200, {"FileStatuses": {"FileStatus": [server.status(path, "")]}})
        if not server.is_folder(path):
            return self.exception(404, "FileNotFoundException")
        start = path.rstrip("/") + "/"
        names = sorted({name[len(start) :].split("/")[0] for name in server.files if name.startswith(start)})
        found = [server.status(start + name, name) for name in names]
        return self.answer(200, {"FileStatuses": {"FileStatus": found}})

    def redirected(self, path):
        excluded = self.asked()[1].get("excludedatanodes", "")
        self.server.excluded.append(excluded)
        # The namenode sends to the dead one until it is told.
        is_dead = self.server.dead and not excluded
        port = self.server.closed_port if is_dead else self.server.good.server_port
        return self.answer(307, location=f"http://127.0.0.1:{port}{self.path}")

    def open(self, path, query):
        if path not in self.server.files:
            return self.exception(404, "FileNotFoundException")
        return self.redirected(path)

    def create(self, path, query):
        return self.redirected(path)

    def mkdirs(self, path, query):
        return self.answer(200, {"boolean": True})

    def rename(self, path, query):
        server, target = self.server, query["destination"]
        if path not in server.files:
            return self.exception(404, "FileNotFoundException")
        if target in server.files and "renameoptions" not in query:
            return self.answer(200, {"boolean": False})
        server.write(target, server.files.pop(path)[0])
        if server.lose_renames:
            server.lose_renames -= 1
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self.answer(200, {"boolean": True})

    def delete(self, path, query):
        gone = [name for name in self.server.files if name == path or name.startswith(path.rstrip("/") + "/")]
        for name in gone:
            del self.server.files[name]
        return self.answer(200, {"boolean": bool(gone)})


class _Datanode(_Base):
    def do_PUT(self):
        path, _ = self.asked()
        length = int(self.headers["Content-Length"])
        data = self.rfile.read(length)
        if len(data) < length:
            return None  # cut off
        if (namenode := self.server.namenode).fills_up and not data.startswith(
            (b"{", b"[")
        ):  # a listing has room
            namenode.room_bytes = 1000
            words = f"File {path} could only be replicated to 0 nodes instead of minReplication (=1)."
            return self.exception(403, "IOException", words)
        if namenode.lose_writes:
            namenode.lose_writes -= 1
            data = b""
        namenode.write(path, data)
        return self.answer(201)

    def do_GET(self):
        path, query = self.asked()
        data = self.server.namenode.files[path][0][int(query.get("offset", 0)) :]
        data = data[: int(query.get("length", len(data)))]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
