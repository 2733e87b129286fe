"""The routes of MLflow that we use, in this process; as careless about repetitions as the real one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from trainmaster.service.notifications.webhook_targets import ReceiverResponse


@dataclass
class FakeMlflow:
    """Runs by id; `sent` has every metric as often as it came."""

    experiments: dict = field(default_factory=dict)
    runs: dict = field(default_factory=dict)
    sent: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    trouble: ReceiverResponse | None = None
    before: object = None

    def post(self, url, body, headers, allowed, *, most_bytes=0):
        assert most_bytes > 0
        if self.before is not None:
            self.before(url)
        if self.trouble is not None:
            return self.trouble
        self.headers.append(dict(headers))
        place, _, what = url.partition("/api/2.0/mlflow/")
        assert place == "http://127.0.0.1:5000"
        return ReceiverResponse(
            200,
            body=json.dumps(
                getattr(self, "_" + what.replace("/", "_").replace("-", "_"))(**json.loads(body))
            ).encode(),
        )

    @property
    def values(self):
        """What a server that knows values by name, step and time has."""
        return {(run, each["key"], each["step"], each["timestamp"], each["value"]) for run, each in self.sent}

    def _experiments_search(self, filter, max_results, view_type):
        found = [(key, name) for key, name in self.experiments.items() if filter == f"name = '{name}'"]
        return {"experiments": [{"experiment_id": key, "name": name} for key, name in found]}

    def _experiments_create(self, name):
        key = str(len(self.experiments) + 1)
        self.experiments[key] = name
        return {"experiment_id": key}

    def _runs_search(self, experiment_ids, filter, max_results):
        found = [
            {"info": {"run_id": key}}
            for key, run in self.runs.items()
            if run["experiment"] in experiment_ids
            and filter == f"tags.`trainmaster.task` = '{run['tags']['trainmaster.task']}'"
        ]
        return {"runs": found} if found else {}

    def _runs_create(self, experiment_id, run_name, start_time, tags):
        key = f"r{len(self.runs) + 1}"
        tags = {each["key"]: each["value"] for each in tags}
        self.runs[key] = {
            "experiment": experiment_id, "name": run_name, "tags": tags, "params": {}, "status": "RUNNING"
        }  # fmt: skip
        return {"run": {"info": {"run_id": key}}}

    def _runs_log_batch(self, run_id, metrics=(), params=()):
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self.runs[run_id]["params"].update({each["key"]: each["value"] for each in params})
        self.sent += [(run_id, each) for each in metrics]
        return {}

    def _runs_update(self, run_id, status, end_time):
        self.runs[run_id]["status"] = status
        return {}
