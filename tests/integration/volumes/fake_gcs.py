"""A small Google Cloud Storage for tests: the rules of its XML API in which it differs from S3.

From https://cloud.google.com/storage/docs/xml-api: a bearer token with every request, objects with
generations, ``x-goog-if-generation-match``, no deletion of many, parts of 5 MiB or more.
"""

import hashlib
from xml.sax.saxutils import escape

from fake_s3 import FakeS3

PART_BYTES = 5 << 20
_PAGE_KEYS = 20


class FakeGcs(FakeS3):
    """Buckets in memory.

    Attributes:
        token: the one that is accepted; empty: any.
        tokens: those that were shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self.token = ""
        self.tokens: set[str] = set()
        self.generations: dict[tuple[int, str], int] = {}
        self.made_uploads = 0
        self.RequestHandlerClass = type("Handler", (_Rules, self.RequestHandlerClass), {})


class _Rules:
    """What differs; before the handler of S3 in the order of classes."""

    server: FakeGcs
    disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms

    def handle_any(self):
        shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
        self.server.tokens.add(shown)
        if not shown or self.server.token not in ("", shown):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return self.error(401, "AuthenticationRequired")
        if self.command in ("PUT", "POST") and "Content-Length" not in self.headers:
            return self.error(411, "MissingContentLength")
        return super().handle_any()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def error(self, status, code):
        words = {"NoSuchBucket": "The specified bucket does not exist."}.get(code, code)
        text = f"<Error><Code>{code}</Code><Message>{words}</Message></Error>"
        self.answer(status, f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode())

    def on_GET(self, objects, key, query, body):
        if key in objects and self.headers.get("If-Match", _etag(objects[key])) != _etag(objects[key]):
            return self.error(412, "PreconditionFailed")
        return super().on_GET(objects, key, query, body)

    on_HEAD = on_GET

    def listing(self, objects, query):
        if query.get("list-type") != ["2"]:
            return self.error(400, "InvalidArgument")
        prefix, after = (query.get(name, [""])[0] for name in ("prefix", "continuation-token"))
        keys = sorted(key for key in objects if key.startswith(prefix))
        folders = []
        if "delimiter" in query:
            below = {key: key[len(prefix) :].partition("/") for key in keys}
            folders = sorted({f"{prefix}{name}/" for name, slash, _ in below.values() if slash})
            keys = [key for key, (_, slash, _) in below.items() if not slash]
        keys = [key for key in keys if key > after]
        page, more = keys[:_PAGE_KEYS], keys[_PAGE_KEYS:]
        xml = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(objects[key])}</Size><ETag>{_etag(objects[key])}</ETag>"
            "<LastModified>2026-11-20T00:00:00.000Z</LastModified></Contents>"
            for key in page
        )
        xml += "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in folders
        )
        if more:
            xml += f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>"
        return self.answer(200, f"<ListBucketResult>{xml}</ListBucketResult>".encode())

    def on_PUT(self, objects, key, query, body):
        if self.headers.get("If-None-Match"):
            return self.error(400, "InvalidArgument")
        now = self.server.generations[id(objects), key] if key in objects else 0
        if self.headers.get("x-goog-if-generation-match", str(now)) != str(now):
            return self.error(412, "PreconditionFailed")
        if "partNumber" not in query:
            self.new_generation(objects, key)
        return super().on_PUT(objects, key, query, body)

    def on_POST(self, objects, key, query, body):
        if "delete" in query:
            return self.error(400, "InvalidArgument")
        if "uploads" in query:
            self.server.made_uploads += 1
            upload = f"upload-{self.server.made_uploads}"
            self.server.uploads[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
            return self.answer(
                200, f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode()
            )
        parts = self.server.uploads.get(query["uploadId"][0])
        if parts is None:
            return self.error(404, "NoSuchUpload")
        if any(len(parts[number]) < PART_BYTES for number in sorted(parts)[:-1]):
            return self.error(400, "EntityTooSmall")
        self.new_generation(objects, key)
        return super().on_POST(objects, key, query, body)

    def on_DELETE(self, objects, key, query, body):
        if "uploadId" not in query and key not in objects:
            return self.error(404, "NoSuchKey")
        return super().on_DELETE(objects, key, query, body)

    def new_generation(self, objects, key):
        place = (id(objects), key)
        self.server.generations[place] = self.server.generations.get(place, 0) + 1


def _etag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'
