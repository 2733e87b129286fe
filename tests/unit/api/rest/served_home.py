"""A server with two teams, in this process."""

from __future__ import annotations

import json
import os
import warnings

from trainmaster.artifacts import publish
from trainmaster.control.task.layout import Home
from trainmaster.db import AcceptedRun, ClosedAttempt, RunChange, Submission, TaskChange
from trainmaster.service import Service
from trainmaster.spec import Recipe
from trainmaster.spec.states import EndReason, State

RECIPE = "name: job\nexperiments:\n  main: {command: 'true'}\n"


class Served:
    """A server with two teams, a token of each kind, and a run of each team that has ended."""

    def __init__(self, root):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from starlette.testclient import TestClient

        from trainmaster.api.rest.app import make_app, make_state
        from trainmaster.web.pages import add_pages

        home = Home(root, root / "cache", f"file://{root}/store", f"sqlite:///{root / 'trainmaster.db'}")
        self.service = Service(home)
        self.state = make_state(self.service, {"PATH": os.environ["PATH"]})
        self.app = make_app(self.state)
        add_pages(self.app)
        self.state.access.make_team("red", 100.0)
        self.state.access.make_team("blue", None)
        self.tokens = {
            f"{team}-{scope}": self.state.access.create_token(f"{team}-{scope}", [scope], team)["token"]
            for team in ("red", "blue")
            for scope in ("read", "run", "infer", "manage")
        }
        self.tokens["red-user"] = self.state.access.create_token("u", ["read", "run"], "red")["token"]
        self.tokens["blue-user"] = self.state.access.create_token("b", ["read", "run"], "blue")["token"]
        self.tokens["owner"] = self.state.access.create_token("o", ["read", "run"])["token"]
        self.tokens["admin"] = self.state.access.create_token("root", ["admin"])["token"]
        for team in ("red", "blue"):
            self.run(f"job-{team}", team)
        self.run("job-own", None)
        self.browser = TestClient(self.app, raise_server_exceptions=False, follow_redirects=False)

    def run(self, run, team):
        recipe = Recipe.from_text(RECIPE, directory=self.service.home.root).model_dump_json()
        new = AcceptedRun(
            run, "job", recipe, "r.yaml", "local", "code", "file:///s", [("main", 1)],
            home=str(self.service.home.root),
            home_id=self.service.home.identity(),
            submission=Submission("x", team),
        )  # fmt: skip
        lease = self.service.database.create_run(new, 1.0)
        place = self.service.home.attempt(run, "main", 0, 1)
        place.make_directories(["worker-0"])
        place.metrics("worker-0").write_text(json.dumps({"step": 1, "loss": 0.5}) + "\n")
        place.log("worker-0").write_text("hello\n")
        folder = self.service.home.root / "model"
        folder.mkdir(exist_ok=True)
        (folder / "<b> ü.txt").write_text("weights")
        publish({"": folder}, self.service.home.model_uri(run, "main", 0), kind="model")
        closes = ClosedAttempt(1, EndReason.SUCCEEDED, "", 1.0, 2.0, None, "[]")
        uri = {"model_uri": self.service.home.model_uri(run, "main", 0)}
        self.service.database.commit(
            lease,
            [
                TaskChange("main", 0, 1, State.WAITING, State.RUNNING, creates=True, opens=True, fields=uri),
                TaskChange("main", 0, 1, State.RUNNING, State.DONE, EndReason.SUCCEEDED, closes=closes),
                RunChange(State.WAITING, State.DONE, EndReason.SUCCEEDED),
            ],
            3.0,
        )
        self.service.database.release(lease, 4.0)

    def ask(self, who, method, path, **more):
        headers = {"authorization": f"Bearer {self.tokens[who]}"} if who else {}
        headers |= more.pop("headers", {})
        self.browser.cookies.clear()  # else what one test has logged in is known in the next one
        return self.browser.request(method, path, headers=headers, **more)
