"""One lab for all tests of this folder, put up by the command line, used through boto3 and ssh."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import ipaddress
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_server import TRAINMASTER, commands
from renter import SCALE, Renter

from trainmaster.lab import LabClient, LabPlace, why_not
from trainmaster.testing.waits import until

HERE = Path(__file__).parent
#: Scripts that run on hosts.
collect_ignore = ["gangs"]
#: The first `lab up` on a machine makes the image.
IMAGE_TIMEOUT_S = 600
#: Hosts of these tests are for looking at, not for measuring: quick enough to boot and log in.
#: What must happen may take so long: others use this machine as well. What must not is looked at for less.
PATIENCE_S = 120.0
#: Of a test, in this try.
HAS_FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder need a lab, and the first of them may have to make the image."""
    reason = None
    for item in items:
        if item.path.is_relative_to(HERE):
            reason = why_not() if reason is None else reason
            item.add_marker(pytest.mark.lab)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(IMAGE_TIMEOUT_S))
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"no lab: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the lab had to say belongs to a test that failed in it."""
    report = yield
    item.stash[HAS_FAILED] = report.failed or (report.when != "setup" and item.stash.get(HAS_FAILED, False))
    lab = getattr(item, "funcargs", {}).get("lab") or getattr(item, "funcargs", {}).get("user")
    if report.failed and isinstance(lab, LabUser):
        report.sections.append(("the lab", lab.last_words()))
    return report


class Ssh:
    """Calls on a host, as a user of the lab's key pair makes them."""

    def __init__(self, lab: LabUser, address: str, user: str = "admin", *, stay: bool = False) -> None:
        self.address = address
        access = lab.access
        # One connection for all calls: quicker, but it does not notice whether another could be made.
        staying = ["-o", "ControlMaster=auto", "-o", f"ControlPath={lab.home}/%C", "-o", "ControlPersist=300"]
        self._command = [
            *("ssh", "-i", access["private_key"], "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
            *("-o", f"UserKnownHostsFile={access['known_hosts']}", "-o", "StrictHostKeyChecking=yes"),
            *(staying if stay else ()),
        ]
        self._login = f"{user}@{address}"

    def run(
        self, script: str, timeout_s: float = PATIENCE_S, *, patience_s: int = 2
    ) -> subprocess.CompletedProcess[str]:
        """Try once; a host that is silent for so long is given up."""
        waits = ["-o", f"ConnectTimeout={patience_s}", "-o", f"ServerAliveInterval={patience_s}"]
        return subprocess.run(
            [*self._command, *waits, "-o", "ServerAliveCountMax=2", self._login, script],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )

    def __call__(self, script: str, timeout_s: float = PATIENCE_S) -> str:
        """Its output; it must succeed."""
        done = self.run(script, timeout_s, patience_s=30)
        assert done.returncode == 0, (script, done.returncode, done.stdout, done.stderr)
        return done.stdout.strip()

    def until_ready(self, timeout_s: float = PATIENCE_S) -> Ssh:
        """Wait until somebody can log in."""
        deadline = time.monotonic() + timeout_s
        while (done := self.run("true")).returncode != 0:
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.05)
        return self


class LabUser:
    """Somebody with a lab, in a home of its own.

    Attributes:
        home: of Trainmaster.
        env: of every call.
    """

    def __init__(self, home: Path, cache: Path) -> None:
        self.home = home
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINMASTER_", "AWS_"))}
        self.env |= {"TRAINMASTER_HOME": str(home), "TRAINMASTER_CACHE": str(cache), "COLUMNS": "200"}

    def call(self, *arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        """``trainmaster lab ...``, which must end so."""
        done = commands.run([TRAINMASTER, "lab", *arguments], env=self.env, timeout=IMAGE_TIMEOUT_S)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: object) -> dict[str, Any]:
        """The object that a call with ``--json`` prints, and nothing else."""
        out = self.call(*arguments, "--json").stdout
        assert out.count("\n") == 1, out
        found: dict[str, Any] = json.loads(out)
        return found

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """What a call would have the daemon do, without the process: for setting up and tidying up."""
        place = LabPlace.of_home(self.home, self.home, (self.home / "identity").read_text().strip())
        return LabClient.require(place).do(verb, **arguments)

    @property
    def directory(self) -> Path:
        return self.home / "lab"

    @property
    def access(self) -> dict[str, Any]:
        """What a provider reads."""
        found: dict[str, Any] = json.loads((self.directory / "lab.json").read_text())
        return found

    @property
    def ec2(self) -> Any:
        """A client of the API."""
        access = self.access
        names = ("endpoint_url", "region", "access_key_id", "secret_access_key")
        return _ec2(*(access[name] for name in names))

    def rent(self, kind: str = "m4.xlarge", count: int = 1, **more: Any) -> list[str]:
        """RunInstances; the ids."""
        access = self.access
        wanted = {"ImageId": access["image_id"], "KeyName": access["key_name"], "InstanceType": kind}
        if "NetworkInterfaces" not in more:
            wanted["SecurityGroupIds"] = [access["security_group_id"]]
        answer = self.ec2.run_instances(MinCount=count, MaxCount=count, **(wanted | more))
        return [instance["InstanceId"] for instance in answer["Instances"]]

    def instance(self, name: str) -> dict[str, Any]:
        """DescribeInstances of one."""
        found = self.ec2.describe_instances(InstanceIds=[name])
        instance: dict[str, Any] = found["Reservations"][0]["Instances"][0]
        return instance

    def alive(self) -> set[str]:
        """Every instance that is not terminated."""
        found = self.ec2.describe_instances()["Reservations"]
        return {
            instance["InstanceId"]
            for reservation in found
            for instance in reservation["Instances"]
            if instance["State"]["Name"] not in ("shutting-down", "terminated")
        }

    def state(self, name: str) -> str:
        return str(self.instance(name)["State"]["Name"])

    def until_state(self, name: str, state: str, timeout_s: float = PATIENCE_S) -> None:
        until(lambda: self.state(name) == state, f"{name} to be {state}", timeout_s)

    def ssh(self, name: str, user: str = "admin", *, stay: bool = False) -> Ssh:
        """A way to log in to an instance, once it can be used."""
        self.until_state(name, "running")
        return Ssh(self, self.instance(name)["PublicIpAddress"], user, stay=stay).until_ready()

    def end(self, *names: str) -> None:
        """TerminateInstances, and wait."""
        self.ec2.terminate_instances(InstanceIds=list(names))
        for name in names:
            self.until_state(name, "terminated")

    def forget_runs(self) -> None:
        """As after a test that failed: nothing drives its runs, and no run or cluster of it is known."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if b"_drive" in words and str(self.home).encode() in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        for file in self.home.glob("trainmaster.db*"):
            file.unlink()

    def last_words(self) -> str:
        """The end of the daemon's log, and of the console of every host that there is."""
        files = [self.directory / "daemon.log", *sorted(self.directory.glob("hosts/*/console.log"))]
        texts = []
        for file in files:
            with contextlib.suppress(OSError):
                lines = file.read_text(errors="replace").splitlines()[-15:]
                texts += [f"--- {file.relative_to(self.directory)}", *lines]
        return "\n".join(texts)

    # --- what there is in the kernel ------------------------------------------------------------------

    def traces(self) -> dict[str, list[str]]:
        """Whatever of this lab can be seen on this machine."""
        where = str(self.directory)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if where in line]
        groups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/tmlab-*") if self._is_ours(path.name)]
        links = [path.name for path in Path("/sys/class/net").iterdir() if self._is_ours(path.name)]
        processes = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if where.encode() in (entry / "cmdline").read_bytes():
                        processes.append(entry.name)
        return {"mounts": mounts, "groups": groups, "links": links, "processes": processes}

    def _is_ours(self, name: str) -> bool:
        identity = self.home / "identity"
        if not identity.exists():
            return False
        mark = hashlib.sha256(identity.read_text().strip().encode()).hexdigest()[:8]
        return name in (f"tmlab-{mark}", f"tml{mark}")

    def clean_up(self) -> None:
        """Nothing is left, whatever the tests did."""
        self.call("down")
        until(lambda: not any(self.traces().values()), f"traces {self.traces()}", PATIENCE_S)


@functools.cache
def _ec2(url: str, region: str, key: str, secret: str) -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "ec2",
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"max_attempts": 0}, proxies={}),
    )


@pytest.fixture(scope="session")
def lab_cache() -> Path:
    """The image is made once per machine, not once per test run."""
    return Path(os.environ.get("TRAINMASTER_CACHE") or "~/.cache/trainmaster").expanduser()


@pytest.fixture(scope="session")
def make_lab_user(
    lab_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], LabUser]]:
    """Makes users, each with a home and perhaps a lab of its own."""
    users: list[LabUser] = []

    def make() -> LabUser:
        users.append(LabUser(tmp_path_factory.mktemp("lab-home"), lab_cache))
        return users[-1]

    yield make
    with contextlib.ExitStack() as stack:
        for user in users:
            stack.callback(user.clean_up)


@pytest.fixture(scope="session")
def lab(make_lab_user: Callable[[], LabUser]) -> LabUser:
    """A user whose lab is up; all tests share it."""
    user = make_lab_user()
    user.call("up", *SCALE)
    return user


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test has rented goes with it, also when it fails: another try finds room and no strangers."""
    lab: LabUser | None = request.getfixturevalue("lab") if "lab" in request.fixturenames else None
    before = lab.alive() if lab else set()
    yield
    if request.node.stash.get(HAS_FAILED, False):
        for user in request.node.funcargs.values():
            if isinstance(user, LabUser):
                user.forget_runs()
    if lab and (extra := lab.alive() - before):
        lab.ec2.terminate_instances(InstanceIds=sorted(extra))


@pytest.fixture
def host(lab: LabUser) -> tuple[str, Ssh]:
    """A host of one's own, until `nothing_is_left` ends it."""
    (name,) = lab.rent()
    return name, lab.ssh(name)


@pytest.fixture(scope="session")
def shared_host(lab: LabUser) -> tuple[str, Ssh]:
    """A host that all tests look at and none changes."""
    (name,) = lab.rent()
    return name, lab.ssh(name, stay=True)


@pytest.fixture
def renter(lab: LabUser, tmp_path: Path) -> Iterator[Renter]:
    """Somebody who runs recipes on machines of the lab; `nothing_is_left` ends what stays."""
    work = tmp_path / "work"
    work.mkdir()
    renter = Renter(lab, work)
    yield renter
    renter.kill_all()


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    """One object store, in which each test makes a bucket."""
    from trainmaster.testing.private_s3 import NoS3Error, PrivateS3

    try:
        server = PrivateS3()
    except NoS3Error as error:
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def lab_servers(
    lab: LabUser, renter: Renter, postgres: Any, s3: Any, tmp_path: Path
) -> Iterator[Callable[[str], Any]]:
    """Makes servers that share a database, an object store that machines of the lab reach, and a key."""
    from server_of_lab import LabServer

    from trainmaster.testing.counting_proxy import CountingProxy

    made: list[LabServer] = []
    network = ipaddress.ip_network(lab.json("status")["network"])
    with CountingProxy(s3.url, str(network[2])) as line:
        key = tmp_path / "server.key"
        key.touch(0o600)
        key.write_bytes(base64.b64encode(os.urandom(32)))
        env = {
            **s3.environment(line.url),
            "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store",
            "TRAINMASTER_DATABASE": postgres.new_url(),
            "TRAINMASTER_KEY_FILE": str(key),
        }

        def make(name: str) -> LabServer:
            made.append(LabServer(renter, tmp_path / name, dict(env)))
            return made[-1]

        yield make
        for server in made:
            server.kill_all()


@pytest.fixture
def store(lab: LabUser, renter: Renter, s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The way to a store; machines of the lab reach it where this machine has its end of their network."""
    from trainmaster.testing.counting_proxy import CountingProxy

    network = ipaddress.ip_network(lab.json("status")["network"])
    with CountingProxy(s3.url, str(network[2])) as line:
        found = {**s3.environment(line.url), "TRAINMASTER_STORE": f"s3://{s3.new_bucket()}/store"}
        renter.env |= found
        renter.store_pid = s3.pid
        for name, value in found.items():
            monkeypatch.setenv(name, value)
        yield line
