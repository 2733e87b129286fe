"""Two runs on EC2 with your credentials, under a hard cap; then whether anything of them is left.

    make real-aws CAP=2

The first trains `examples/digits` on two machines on demand. The second counts steps on two spot machines, of
which one is ended under it, as Amazon would: it must go on from its checkpoint. What is left is looked for
with boto3 alone, in every region of the account, by the tag of a home that is made for this.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3

HERE = Path(__file__).resolve().parents[1]
TRAINMASTER = str(Path(sys.executable).with_name("trainmaster"))
SETUP = "pip install --quiet numpy scikit-learn torch==2.13.0 --extra-index-url https://download.pytorch.org/whl/cpu"
STEPS = """
import os, pathlib, sys, time
mine = pathlib.Path(os.environ["TRAINMASTER_CHECKPOINT_DIR"]) / f"step-{os.environ['TRAINMASTER_INDEX']}"
step = int(mine.read_text()) if mine.exists() else 0
print("begins at", step, flush=True)
while step < int(sys.argv[1]):
    time.sleep(1)
    step += 1
    if step % 3 == 0:  # what changes while it is read is no checkpoint: a busy machine reads for a second
        draft = mine.with_suffix(".draft")
        draft.write_text(str(step))
        draft.replace(mine)
    print("step", step, flush=True)
pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"], "steps.txt").write_text(str(step))
"""
#: How long machines may take to be gone after a run is over.
GONE_S = 300.0
PAUSE_S = 5.0


class NotPassedError(Exception):
    """Something is not as it was promised."""


def main() -> int:
    """Both runs and the check; the exit code is 0 if all is as it was promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cap", type=float, required=True, help="dollars that both runs may cost together")
    parser.add_argument("--type", default="c5.large", help="instance type; c5.large")
    parser.add_argument(
        "--provider", default="aws", choices=("aws", "lab"), help="lab: try this script itself"
    )
    parser.add_argument("--steps", type=int, default=150, help="seconds that the second run takes; 150")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainmaster-real-") as directory:
        is_lab = options.provider == "lab"
        home = os.environ["TRAINMASTER_HOME"] if is_lab else f"{directory}/home"
        env = {**os.environ, "TRAINMASTER_HOME": home}
        access = lab_access(Path(home)) if is_lab else {}
        who = "the lab" if is_lab else boto3.client("sts").get_caller_identity()["Arn"]
        print(
            f"as {who}: two runs on 2 x {options.type}, at most ${options.cap:.2f} together", file=sys.stderr
        )
        if not options.yes and input("go on? [y/N] ").strip().lower() != "y":
            return 1
        trial = Trial(Path(directory), env, access, options)
        others = frozenset(trial.things())  # of other runs in a lab's home, or left by one that was killed
        found: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "provider": options.provider}
        try:
            found["digits"] = trial.digits()
            found["lost_spot_machine"] = trial.lost_spot_machine()
        except NotPassedError as error:
            found["failed"] = str(error)
        finally:
            found["left"] = trial.left(others)
        print(json.dumps(found, indent=1))
        return 1 if "failed" in found or found["left"] else 0


def lab_access(home: Path) -> dict[str, str]:
    """How boto3 reaches the lab of a home."""
    facts = json.loads((home / "lab" / "lab.json").read_text())
    return {
        "endpoint_url": facts["endpoint_url"],
        "region_name": facts["region"],
        "aws_access_key_id": facts["access_key_id"],
        "aws_secret_access_key": facts["secret_access_key"],
    }


class Trial:
    """Both runs, of one home.

    Args:
        directory: for recipes and code.
        env: of Trainmaster.
        access: how boto3 reaches the cloud, besides what is configured.
        options: of the command line.
    """

    def __init__(
        self, directory: Path, env: Mapping[str, str], access: Mapping[str, str], options: argparse.Namespace
    ) -> None:
        self._directory = directory
        self._env = env
        self._access = access
        self._options = options

    def digits(self) -> dict[str, Any]:
        """The example of the README, as it is, on machines on demand."""
        code = HERE / "examples" / "digits"
        lines = (code / "recipe.yaml").read_text().rstrip().splitlines()
        lines += [f"    hardware: {{instance: {self._options.type}}}"]
        if self._options.provider == "aws":
            lines += [f"    setup: {json.dumps(SETUP)}"]
        run = self._run("digits", [*lines, *self._budget()], {"train.py": (code / "train.py").read_text()})
        return self._ended(run)

    def lost_spot_machine(self) -> dict[str, Any]:
        """A gang on spot machines, of which one is ended in the middle."""
        lines = [
            "name: steps",
            "experiments:",
            "  train:",
            "    distributed: {strategy: allreduce, workers: 2}",
            "    framework: plain",
            f"    hardware: {{instance: {self._options.type}, spot: true}}",
            "    checkpoint: {every: 5s}",
            f"    command: python3 steps.py {self._options.steps}",
        ]
        run = self._run("steps", [*lines, *self._budget()], {"steps.py": STEPS})
        until(lambda: "step 30" in self._call("logs", run.id), run)
        one = next(iter(self._machines()))
        self._ec2(one["region"]).terminate_instances(InstanceIds=[one["id"]])
        found = self._ended(run)
        begun = [line.split()[-1] for line in self._call("logs", run.id).splitlines() if "begins at" in line]
        if all(step == "0" for step in begun):
            raise NotPassedError(f"{run.id}: no attempt went on from a checkpoint ({begun})")
        return {**found, "ended": one["id"], "begun_at": begun}

    def left(self, others: frozenset[str]) -> list[str]:
        """What bears the tag of the home, in any region, after a while in which machines may end.

        Args:
            others: what is not of these two runs.
        """
        deadline = time.monotonic() + GONE_S
        while (found := [one for one in self.things() if one not in others]) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        return found

    def _budget(self) -> list[str]:
        return [f"budget: {{total: ${self._options.cap / 2:.2f}}}"]

    def _run(self, name: str, lines: list[str], files: Mapping[str, str]) -> Run:
        place = self._directory / name
        place.mkdir()
        (place / "recipe.yaml").write_text("\n".join(lines) + "\n")
        for file, text in files.items():
            (place / file).write_text(text)
        recipe = str(place / "recipe.yaml")
        options = ["--provider", self._options.provider, "--yes", "--json"]
        return Run([TRAINMASTER, "run", recipe, *options], self._env, place)

    def _ended(self, run: Run) -> dict[str, Any]:
        found = run.end()
        cost_usd, most_usd = float(found.get("cost_usd") or 0.0), self._options.cap / 2
        if found.get("reason") != "SUCCEEDED" or cost_usd > most_usd:
            raise NotPassedError(f"{run.id}: {found.get('reason')}, ${cost_usd:.2f} of ${most_usd:.2f}")
        self._call("models", "fsck", run.id)
        keys = ("run", "reason", "seconds", "cost_usd", "quote")
        return {key: found[key] for key in keys if key in found}

    def _call(self, *arguments: str) -> str:
        done = subprocess.run([TRAINMASTER, *arguments], env=self._env, capture_output=True, text=True)
        if done.returncode:
            raise NotPassedError(f"trainmaster {shlex.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _ec2(self, region: str) -> Any:  # noqa: ANN401 - boto3 has no types
        return boto3.client("ec2", **{**self._access, "region_name": region})

    def _regions(self) -> list[str]:
        if self._access:
            return [self._access["region_name"]]
        session = boto3.Session()
        first = session.region_name or "us-east-1"
        return [each["RegionName"] for each in self._ec2(first).describe_regions()["Regions"]]

    def _tag(self) -> list[dict[str, Any]]:
        identity = Path(self._env["TRAINMASTER_HOME"], "identity")  # without one nothing was ever asked for
        values = identity.read_text().strip() if identity.exists() else "none"
        return [{"Name": "tag:trainmaster:home", "Values": [values]}]

    def _machines(self) -> Iterator[dict[str, str]]:
        """Those that are billed, or will be."""
        states = {
            "Name": "instance-state-name",
            "Values": ["pending", "running", "stopping", "shutting-down"],
        }
        for region in self._regions():
            pages = self._ec2(region).get_paginator("describe_instances")
            for page in pages.paginate(Filters=[*self._tag(), states]):
                for one in (one for reservation in page["Reservations"] for one in reservation["Instances"]):
                    yield {"region": region, "id": one["InstanceId"], "state": one["State"]["Name"]}

    def things(self) -> Iterator[str]:
        """Everything that a run makes, in words that name it."""
        for one in self._machines():
            yield f"{one['region']}: instance {one['id']} is {one['state']}"
        for region in self._regions():
            ec2 = self._ec2(region)
            calls = [
                (ec2.describe_volumes, "Volumes", "VolumeId"),
                (ec2.describe_security_groups, "SecurityGroups", "GroupId"),
                (ec2.describe_key_pairs, "KeyPairs", "KeyPairId"),
                (ec2.describe_spot_instance_requests, "SpotInstanceRequests", "SpotInstanceRequestId"),
            ]
            if not self._access:  # a lab has none
                calls.append((ec2.describe_placement_groups, "PlacementGroups", "GroupName"))
            for call, many, name in calls:
                for one in call(Filters=self._tag())[many]:
                    if one.get("State") not in ("closed", "cancelled", "failed", "deleted"):
                        yield f"{region}: {many} {one[name]}"


class Run:
    """A `trainmaster run` under way; its progress is on our standard error."""

    def __init__(self, command: list[str], env: Mapping[str, str], place: Path) -> None:
        self._out, self._err = place / "out", place / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, env=dict(env), stdout=out, stderr=err)

    @property
    def id(self) -> str:
        """As soon as it has one."""
        until(lambda: ": started" in self._err.read_text(), self)
        return next(line for line in self._err.read_text().splitlines() if ": started" in line).split(":")[0]

    def end(self) -> dict[str, Any]:
        """Its last line of JSON."""
        self.process.wait()
        sys.stderr.write(self._err.read_text())
        with suppress(json.JSONDecodeError, IndexError):
            found: dict[str, Any] = json.loads(self._out.read_text().strip().splitlines()[-1])
            return found
        raise NotPassedError(f"it ended with {self.process.returncode}, and without JSON")


def until(condition: Callable[[], bool], run: Run) -> None:
    """Wait as long as a run goes on: its budget bounds that."""
    while not condition():
        if run.process.poll() is not None:
            raise NotPassedError(f"it ended too early: {run.end()}")
        time.sleep(3.0)  # looking at logs starts a Python


if __name__ == "__main__":
    sys.exit(main())
