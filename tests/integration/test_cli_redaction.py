"""Secrets in URLs: they work, and are nowhere afterwards."""

from __future__ import annotations

import base64
import hashlib
import http.server
import shutil
import threading
from collections.abc import Iterator

import pytest

PASSWORD = "SECRETPW/with:signs@"
SIGNATURE = "5EC12E75161A7012E"


class Server(http.server.ThreadingHTTPServer):
    """Gives one file to clients that know the password; asks others for one."""

    content = b"the data\n"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = "Basic " + base64.b64encode(f"me:{PASSWORD}".encode()).decode()
            self.server.known.add(self.headers.get("Authorization"))
            good = self.headers.get("Authorization") == known and self.path == "/good"
            good = good or self.path.startswith("/signed?")
            self.send_response(200 if good else 403)
            self.send_header("Content-Length", str(len(Server.content) if good else 0))
            self.end_headers()
            self.wfile.write(Server.content if good else b"")

        def log_message(self, *_: object) -> None:
            pass

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.known: set[str | None] = set()
        self.place = f"127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True).start()
        yield found
        found.shutdown()


def holders(tm, *words: str) -> list[str]:
    """Files of the home, the database among them, that hold one of these words."""
    found = [path for path in tm.home.rglob("*") if path.is_file()]
    return [str(path) for path in found if any(word.encode() in path.read_bytes() for word in words)]


def test_a_password_comes_from_the_secrets_and_is_nowhere(tm, server):
    env = {**tm.env, "PW": PASSWORD}
    words = (PASSWORD, "SECRETPW")
    digest = hashlib.sha256(Server.content).hexdigest()
    for path, code in (("good", 0), ("bad", 1)):
        url = (
            f"http://me:${{PW}}@{server.place}/{path}?token=${{PW}}"
            if code
            else (f"http://me:${{PW}}@{server.place}/{path}")
        )
        data = {"x": {"url": url, "sha256": digest}}
        recipe = tm.task("cat $TRAINMASTER_DATA_X/good", data=data, secrets=["PW"])
        result = tm.call("run", recipe, "--json", code=2 * code, env=env)
        said = [result]
        if not code:
            run = tm.summary(result)["run"]
            said += [tm.call("status", run, "--json"), tm.call("status", run), tm.call("logs", run)]
        assert not [each for each in said if any(word in each.out + each.err for word in words)]
    assert "${PW}" in result.err
    assert "403" in result.err
    tm.until_quiet()
    assert holders(tm, *words) == []


def test_a_password_in_the_recipe_is_refused(tm, server):
    for data in ({"url": f"http://me:SECRETPW@{server.place}/good"}, {"volume": "s3://me:SECRETPW@b/v"}):
        refusal = tm.refused(tm.task("true", data={"x": data}))
        assert "SECRETPW" not in refusal
        assert "secrets" in refusal
    assert "${NOBODY} in a URL is no variable" in tm.refused(
        tm.task("true", data={"x": {"url": f"http://${{NOBODY}}@{server.place}/"}})
    )
    assert holders(tm, "SECRETPW") == []


def test_a_signature_is_not_shown(tm, server):
    bad, good = (
        f"http://{server.place}/{path}?X-Amz-Signature={SIGNATURE}&n=2" for path in ("bad", "signed")
    )
    refusal = tm.refused(tm.task("true", data={"x": {"url": bad}}))
    assert "X-Amz-Signature=***&n=2" in refusal
    assert SIGNATURE not in refusal
    recipe = tm.task("true", data={"x": {"url": good}})
    result = tm.call("run", recipe, "--json")
    run = tm.summary(result)["run"]
    assert "holds a signature" in result.err
    for each in (result, tm.call("check", recipe), tm.call("status", run, "--json"), tm.call("logs", run)):
        assert SIGNATURE not in each.out + each.err
    tm.until_quiet()
    # The run's own copy of the recipe needs it, and the recipe lies with the code.
    needed = ("trainmaster.db", "recipe.yaml")
    assert [path for path in holders(tm, SIGNATURE) if not any(name in path for name in needed)] == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRAINMASTER_STORE", "s3://me:SECRETPW@bucket/x"),
        ("TRAINMASTER_DATABASE", "postgresql://me:SECRETPW@127.0.0.1:1/x"),
        ("TRAINMASTER_DATABASE", "postgresql://127.0.0.1:1/x?user=me&password=SECRETPW"),
    ],
)
def test_passwords_of_stores_and_databases_are_not_shown(tm, variable, value):
    for arguments in (("run", tm.task("true")), ("status",), ("doctor",), ("volume", "ls")):
        result = tm.call(*arguments, code=None, env={**tm.env, variable: value})
        assert "SECRETPW" not in result.out + result.err
    assert holders(tm, "SECRETPW") == []


def test_a_repository_that_cannot_be_had(tm, server):
    """Its password is in no message, and in no process list, which everybody on the machine can read."""
    fake = tm.root / "bin" / "git"
    fake.parent.mkdir()
    git = shutil.which("git")
    fake.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {tm.notes}/arguments\nexec {git} "$@"\n')
    fake.chmod(0o755)
    recipe = tm.task("true")
    for ref in ("main", "0123abcdef"):
        code = f"http://me:SECRETPW@{server.place}/p.git@{ref}"
        recipe.write_text(f"code: {code}\nexperiments: {{main: {{command: 'true'}}}}\n")
        env = {**tm.env, "PATH": f"{fake.parent}:{tm.env['PATH']}"}
        assert "SECRETPW" not in tm.call("run", recipe, code=2, env=env).err
    assert "clone" in (tm.notes / "arguments").read_text()
    assert "SECRETPW" not in (tm.notes / "arguments").read_text()
    assert server.known == {"Basic " + base64.b64encode(b"me:SECRETPW").decode()}
    assert holders(tm, "SECRETPW") == []
