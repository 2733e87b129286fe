"""Mistakes that `check`, `quote` and `run` tell before anything is dialled, rented or started, anywhere."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

PROVIDERS = ("local", "hosts", "aws")
VERBS = (("check",), ("quote",), ("run", "--yes", "--allow-stale"))


class Elsewhere:
    """Everything that is not this machine: a host, AWS's API, object stores, registries, web servers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lists = lambda: ""  # what a bucket has, if its keys are good
        elsewhere = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                elsewhere.asked.append(self.path)
                if listing := elsewhere.lists():
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(listing)))
                    self.end_headers()
                    self.wfile.write(listing.encode())
                    return
                code = "NoSuchBucket" if self.path.startswith("/nobucket") else "InvalidAccessKeyId"
                content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
                self.send_response(404 if code == "NoSuchBucket" or "/v2/" in self.path else 403)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_PUT = do_POST = do_HEAD = do_GET

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def elsewhere(tm) -> Iterator[Elsewhere]:
    found = Elsewhere()
    inventory = tm.root / "hosts.yaml"
    host, _, port = found.address.partition(":")
    inventory.write_text(f"hosts:\n- {{address: {host}, port: {port}, user: nobody}}\n")
    for name in [name for name in tm.env if name.startswith("AWS_")]:
        del tm.env[name]
    tm.env |= {
        "HOME": str(tm.root),
        "TRAINMASTER_HOSTS": str(inventory),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ENDPOINT_URL": f"http://{found.address}",
        "AWS_ACCESS_KEY_ID": "wrong",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_REGION": "us-east-1",
    }
    yield found
    found.close()


def recipe_of(tm, provider, top=None, **keys):
    keys["hardware"] = {**({"instance": "m4.large"} if provider == "aws" else {}), **keys.get("hardware", {})}
    experiment = {"command": "touch $NOTES/ran", **keys}
    return tm.recipe(
        {"name": "job", "provider": provider, **(top or {}), "experiments": {"main": experiment}}
    )


def told(tm, elsewhere, *words, providers=PROVIDERS, asked=(), verbs=VERBS, top=None, **keys):
    """Every verb says so on every provider, and has done nothing else."""
    for provider in providers:
        recipe = recipe_of(tm, provider, top, **keys)
        for verb, *arguments in verbs:
            result = tm.call(verb, recipe, *arguments, code=2)
            for word in words:
                assert word in result.err, (provider, verb, result.err)
            assert all(path.startswith(tuple(asked)) for path in elsewhere.asked), (provider, verb)
            elsewhere.asked.clear()
            assert not (tm.notes / "ran").exists(), (provider, verb)
            assert tm.runs() == []


def test_a_number_of_gpus_where_their_model_belongs(tm, elsewhere):
    told(tm, elsewhere, "hardware.gpu: the number 1; did you mean `gpus: 1`?", hardware={"gpu": 1})


def test_a_gpu_that_is_called_like_a_number(tm):
    assert tm.call("check", recipe_of(tm, "local", hardware={"gpu": 4090})).code == 0


def test_an_object_store_that_refuses(tm, elsewhere):
    for url, words in (("s3://nobucket/x", "Create the bucket"), ("s3://theirs/x", "Check the credentials")):
        tm.env["TRAINMASTER_STORE"] = url
        run_and_check = (VERBS[0], VERBS[2])
        paths = ("/nobucket/", "/theirs/")
        told(tm, elsewhere, f"TRAINMASTER_STORE: Cannot write {url}", words, asked=paths, verbs=run_and_check)
        quoted = tm.call("quote", recipe_of(tm, "hosts"), "--fresh")  # which keeps nothing
        assert "note: a run would be refused: TRAINMASTER_STORE" in quoted.err
        (tm.notes / "ran").unlink(missing_ok=True)
        elsewhere.asked.clear()


def test_an_object_store_that_nobody_answers_for(tm, elsewhere):
    tm.env |= {"TRAINMASTER_STORE": "s3://b/x", "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"}
    told(tm, elsewhere, "TRAINMASTER_STORE: Cannot write s3://b/x", "Check the network", verbs=VERBS[2:])


def test_code_that_is_too_large(tm, elsewhere):
    with (tm.work / "big.bin").open("wb") as file:
        file.truncate(150_000_000)
    told(tm, elsewhere, "code: . has 150 MB, more than the limit of 100 MB", "big.bin")


def test_data_that_are_not_there(tm, elsewhere):
    data = {"a": {"dir": "nowhere"}}
    told(tm, elsewhere, "experiments.main.data.a.dir: there is no", "the recipe's folder", data=data)
    data = {
        "b": {"volume": "nothing"},
        "c": {"url": f"http://{elsewhere.address}/x.tar"},
    }
    volume = "experiments.main.data.b.volume: there is no volume nothing"
    url = f"experiments.main.data.c.url: http://{elsewhere.address}/x.tar: 403"
    told(tm, elsewhere, volume, "volume push", url, asked=["/x.tar"], data=data)
    data = {"d": {"url": "file:///no/such.tar"}}
    told(tm, elsewhere, "experiments.main.data.d.url: there is no /no/such.tar", data=data)
    data = {"e": {"url": "s3://nobucket/x"}}
    told(tm, elsewhere, "experiments.main.data.e.url: Cannot list", "Create the bucket",
         asked=["/nobucket"], data=data)  # fmt: skip


def test_no_credentials(tm, elsewhere):
    told(tm, elsewhere, "secrets: no value for MY_TOKEN", "export it", secrets=["MY_TOKEN"])
    del tm.env["AWS_ACCESS_KEY_ID"], tm.env["AWS_SECRET_ACCESS_KEY"]
    verbs = (VERBS[0], VERBS[2])
    told(tm, elsewhere, "no AWS credentials", "aws configure", providers=["aws"], verbs=verbs)
    assert (
        "note: a run would be refused: provider: aws: no AWS credentials"
        in tm.call("quote", recipe_of(tm, "aws")).err
    )


def test_a_region_that_does_not_exist(tm, elsewhere):
    told(tm, elsewhere, "hardware", "region", providers=["aws"], hardware={"region": "mars-1"})
    for provider in ("local", "hosts"):
        recipe = recipe_of(tm, provider, hardware={"region": "mars-1"})
        assert "hardware.region is only a wish" in tm.call("check", recipe).err


def test_an_image_that_does_not_exist(tm, elsewhere):
    image = f"{elsewhere.address}/no/such:1"
    verbs = (VERBS[0], VERBS[2])
    words = f"experiments.main.container: {elsewhere.address} has no image no/such:1"
    told(tm, elsewhere, words, "push it", providers=["aws"], asked=["/v2/"], verbs=verbs, container=image)
    assert f"note: {words}" in tm.call("check", recipe_of(tm, "hosts", container=image)).err


def test_a_volume_of_the_store_can_be_measured_with(tm):
    (tm.work / "set").mkdir()
    (tm.work / "set" / "x").write_text("1\n")
    tm.call("volume", "push", tm.work / "set", "numbers")
    recipe = tm.task("cat $TRAINMASTER_DATA_D/x", data={"d": {"volume": "numbers"}})
    assert "1 measurement" in tm.call("quote", recipe).out
    assert str(tm.home) not in Path("/proc/self/mountinfo").read_text(), "nothing stays mounted"
    assert not any(path.is_dir() for path in (tm.home / "profiles").iterdir())


def test_the_region_of_aws_is_the_users_and_never_just_any(tm, elsewhere):
    del tm.env["AWS_REGION"]
    recipe = recipe_of(tm, "aws")
    verbs = (VERBS[0], VERBS[2])
    told(tm, elsewhere, "no region is chosen", "AWS_REGION", "us-east-1", providers=["aws"], verbs=verbs)
    assert "no region is chosen" in tm.call("quote", recipe, code=2).err
    tm.env["AWS_REGION"] = "mars-1"
    told(tm, elsewhere, "has no prices of mars-1", "eu-west-1", providers=["aws"])
    del tm.env["AWS_REGION"]
    config = tm.root / ".aws" / "config"
    config.parent.mkdir()
    config.write_text("[default]\nregion = mars-1\n[profile mine]\nregion = us-west-2\n")
    tm.env["AWS_PROFILE"] = "mine"
    assert tm.call("check", recipe).code == 0


_LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult><Name>bucket</Name><Prefix>set/</Prefix><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>
<Contents><Key>set/a.txt</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag><Size>2</Size>
</Contents></ListBucketResult>"""


def test_keys_that_expire_under_a_run_are_the_users(tm, elsewhere):
    """They were good when the run began; the experiment that needs them again says what to do."""
    elsewhere.lists = lambda: "" if (tm.notes / "ran").exists() else _LISTING
    later = {"after": ["main"], "command": "true", "data": {"set": {"url": "s3://bucket/set"}}}
    recipe = tm.recipe(
        {"name": "job", "experiments": {"main": {"command": "touch $NOTES/ran"}, "later": later}}
    )
    found = tm.run(recipe, code=1)
    assert (found["reason"], found["experiments"]["main"]["reason"]) == ("USER_ERROR", "SUCCEEDED")
    told = " ".join(tm.call("status", found["run"]).out.split())
    assert "USER_ERROR: Cannot" in told
    assert "s3://bucket/set" in told
    assert "Check the credentials" in told
