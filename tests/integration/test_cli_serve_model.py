"""A model is trained, named, and served: asked at home, and through a server by a token for that alone."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request

import pytest

from trainmaster.testing.waits import until

pytest.importorskip("h11", reason="the extra `serve` is not installed")

SCRIPT = """
import numpy as np

def load(model_dir):
    with open(f"{model_dir}/factor") as file:
        return int(file.read())

def predict(model, inputs):
    return {"y": inputs["x"] * model}
"""
BODY = {"inputs": [{"name": "x", "shape": [2], "datatype": "INT64", "data": [1, 2]}]}


def ask(url, token=None, body=BODY):
    """Status and answer; -1 if nobody listens."""
    request = urllib.request.Request(url, json.dumps(body).encode())
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_a_model_is_served_and_asked(tm):
    tm.write("serve_digits.py", SCRIPT)
    train = {
        "name": "first",
        "experiments": {
            "train": {
                "command": 'cp serve_digits.py "$TRAINMASTER_OUTPUT_DIR/serve.py"\n'
                'echo 3 > "$TRAINMASTER_OUTPUT_DIR/factor"',
                "promote": "digits@production",
            }
        },
    }
    tm.call("run", tm.recipe(train))
    assert "--name A B: no name of a service" in tm.call("serve", "digits", "--name", "A B", code=2).err
    for words in (("serve", "digits"), ("notebook",)):  # whoever gives options has written no file
        said = tm.call(*words, "--provider", "nosuch", code=2).err
        assert said.startswith("error: provider: there is no provider 'nosuch'; known are aws, ")
    serving = tm.start("serve", "digits@production")
    serving.until(lambda: "is ready" in serving.err, "a replica is ready")
    path = "v2/models/digits/infer"
    assert tm.call("services", "show", "digits", "--json").json["path"] == path.removesuffix("/infer")
    url = serving.out.strip() + path
    status, answer = until(lambda: found if (found := ask(url))[0] == 200 else None, "it answers")
    assert answer["outputs"] == [{"name": "y", "datatype": "INT64", "shape": [2], "data": [3, 6]}]
    status, answer = ask(url, body={"inputs": [{**BODY["inputs"][0], "shape": [3]}]})
    assert (status, answer["error"]) == (400, "input 'x' has 2 values; its shape [3] needs 3")

    server = tm.start("server", "--port", "0", "--json")
    server.until(lambda: server.out.endswith("\n"), "the server is ready")
    url = f"{json.loads(server.out)['apps_url']}/services/digits/{path}"
    infer = tm.call("token", "create", "asks", "--scopes", "infer").out.strip()
    read = tm.call("token", "create", "reads", "--scopes", "read").out.strip()
    assert ask(url, infer)[1]["outputs"][0]["data"] == [3, 6]
    assert (ask(url)[0], ask(url, read)[0]) == (401, 403)
    assert ask(url.replace("/digits/", "/others/", 1), infer)[0] == 404

    assert "digits   ready  digits@1  1 of 1 ready" in tm.call("services").out
    tm.call("services", "stop", "digits")
    serving.wait(1)
    assert tm.call("services", "show", "digits", "--json").json["state"] == "DONE"
    assert tm.call("services", "stop", "digits").err == "digits is over already\n"
    now = tm.call("services")
    assert (now.out, "`trainmaster services --all` shows them" in now.err) == ("", True)
    assert "digits   over" in tm.call("services", "--all").out
    status, answer = until(lambda: found if (found := ask(url, infer))[0] == 404 else None, "it is over")
    assert "the service 'digits' is over" in answer["error"]
    server.send(signal.SIGTERM)
    server.wait(0)
