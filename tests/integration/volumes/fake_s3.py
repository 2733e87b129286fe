"""A small S3 server for tests: what object stores are asked by Trainmaster, and some faults."""

import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class FakeS3(ThreadingHTTPServer):
    """Buckets in memory.

    Attributes:
        buckets: bucket -> key -> bytes.
        deny: answer everything with 403.
        lose_answers: how many successful creations to answer with 500 all the same.
        largest_body_bytes: of the requests so far.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()
        self.deny = False
        self.lose_answers = 0
        self.largest_body_bytes = 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms
    server: FakeS3

    def log_message(self, *arguments):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def error(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def handle_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.largest_body_bytes = max(self.server.largest_body_bytes, length)
        parts = urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        _, bucket, *rest = unquote(parts.path).split("/", 2)
        key = rest[0] if rest else ""
        if self.server.deny:
            return self.error(403, "AccessDenied")
        if bucket not in self.server.buckets:
            return self.error(404, "NoSuchBucket")
        with self.server.lock:
            return getattr(self, f"on_{self.command}")(self.server.buckets[bucket], key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def on_GET(self, objects, key, query, body):
        if not key:
            return self.listing(objects, query)
        if key not in objects:
            return self.error(404, "NoSuchKey")
        data = objects[key]
        common = {
            "ETag": f'"{hashlib.md5(data).hexdigest()}"',
            "Last_Modified": "Fri, 20 Nov 2026 00:00:00 GMT",
        }
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            start, end = int(match[1]), min(int(match[2]), len(data) - 1)
            common["Content_Range"] = f"bytes {start}-{end}/{len(data)}"
            return self.answer(206, data[start : end + 1], **common)
        return self.answer(200, data, Content_Length=str(len(data)), **common)

    on_HEAD = on_GET

    def listing(self, objects, query):
        prefix = query.get("prefix", [""])[0]
        keys = sorted(key for key in objects if key.startswith(prefix))
        folders = set()
        if "delimiter" in query:
            folders = {key[: key.index("/", len(prefix)) + 1] for key in keys if "/" in key[len(prefix) :]}
            keys = [key for key in keys if "/" not in key[len(prefix) :]]
        after = query.get("continuation-token", [""])[0]
        keys = [key for key in keys if key > after]
        page, more = keys[:3], keys[3:]
        xml = "<ListBucketResult>"
        for key in page:
            xml += (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size>"
                "<LastModified>2026-11-20T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
            )
        xml += "".join(
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)
        )
        if more:
            xml += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        xml += f"<IsTruncated>{'true' if more else 'false'}</IsTruncated></ListBucketResult>"
        return self.answer(200, xml.encode())

    def on_PUT(self, objects, key, query, body):
        if "partNumber" in query:
            self.server.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
            return self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        if self.headers.get("If-None-Match") == "*" and key in objects:
            return self.error(412, "PreconditionFailed")
        objects[key] = body
        if self.headers.get("If-None-Match") and self.server.lose_answers:
            self.server.lose_answers -= 1
            return self.error(500, "InternalError")
        return self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def on_POST(self, objects, key, query, body):
        if "delete" in query:
            names = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for name in names:
                objects.pop(name, None)
            deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
            return self.answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())
        if "uploads" in query:
            upload = str(len(self.server.uploads))
            self.server.uploads[upload] = {}
            return self.answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        parts = self.server.uploads.pop(query["uploadId"][0])
        objects[key] = b"".join(parts[number] for number in sorted(parts))
        return self.answer(
            200, b'<CompleteMultipartUploadResult><ETag>"x-2"</ETag></CompleteMultipartUploadResult>'
        )

    def on_DELETE(self, objects, key, query, body):
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"][0], None)
        else:
            objects.pop(key, None)
        return self.answer(204)
