"""`NodeEvents`: event files of tasks that work on other machines, as they grow there."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from trainmaster.cluster.member_places import PLACES, read_places
from trainmaster.providers.capabilities import capabilities_of
from trainmaster.service.shells import find_way
from trainmaster.spec.clocks import boot_s
from trainmaster.spec.errors import TrainmasterError
from trainmaster.spec.states import State

if TYPE_CHECKING:
    from trainmaster.service.service import Service

#: Machines are asked so often.
LOOK_S: Final = 30.0
_ANSWER_S: Final = 60.0
#: Of one machine, at one look.
_MOST_FILES: Final = 2000
_MOST_BYTES: Final = 64 << 20
#: What a machine may call an event file, below the directory of the run.
_PATH: Final = re.compile(r"(tasks|code)(/[^/\x00-\x1f\x7f]{1,255}){1,20}")

#: Executes a command on a machine: what it says.
Ask = Callable[[str, str], bytes]


class NodeEvents:
    """Those of one run; `look` is to be called again and again.

    Args:
        service: of the home.
        run: its id.
        directory: where they are put: ``EXPERIMENT/TASK/...``, and what lies beside the code.
        environ: credentials of the provider.
        most_bytes: of all together.
        ask: executes a command on a machine; replaced in tests.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        directory: Path,
        environ: Mapping[str, str],
        most_bytes: int,
        ask: Ask | None = None,
    ) -> None:
        self._service, self._run, self._directory, self._environ = service, run, directory, environ
        self._left_bytes = most_bytes
        self._ask = ask or self._asked
        self._machine_of: dict[Path, str] = {}
        self._look_at = 0.0

    def look(self) -> int:
        """Bring what has been written since; how many files have grown.

        Raises:
            TrainmasterError: a machine cannot be reached.
            OSError: there is no room.
        """
        row = self._service.database.run_row(self._run)
        if boot_s() < self._look_at or row["state"] == State.DONE:
            return 0
        if capabilities_of(row["provider"]).is_here:
            return 0
        self._look_at = boot_s() + LOOK_S
        files = self._service.files_of(self._run)
        places = (files.run_directory(self._run) / "tasks").glob(f"*/*/*/{PLACES}")
        machines = sorted({machine for path in places for machine in read_places(path).values()})
        from trainmaster.cluster.node_provisioner import root_on_nodes

        root = f"{root_on_nodes(row['home_id'] or self._service.home.identity())}/runs/{self._run}"
        return sum(self._look(machine, root) for machine in machines)

    def _look(self, machine: str, root: str) -> int:
        found = (
            f"cd {shlex.quote(root)} && find tasks code -type f -name '*tfevents*' ! -name '*.draft' "
            f"-printf '%s %p\\n' 2>/dev/null | head -n {_MOST_FILES}"
        )
        wanted = list(self._grown(machine, self._ask(machine, found).decode("utf-8", "replace").splitlines()))
        if not wanted:
            return 0
        pieces = [
            f"tail -c +{begin + 1} -- {shlex.quote(path)} | head -c {count}"
            for path, _, begin, count in wanted
        ]
        data, count_of_files = self._ask(machine, f"cd {shlex.quote(root)} && {'; '.join(pieces)}"), 0
        for _, target, _, count in wanted:
            piece, data = data[:count], data[count:]
            if len(piece) < count:  # it was cut or is gone: what follows would be another file's
                break
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("ab") as file:
                file.write(piece)
            self._machine_of[target] = machine
            self._left_bytes -= count
            count_of_files += 1
        return count_of_files

    def _grown(self, machine: str, lines: Sequence[str]) -> Sequence[tuple[str, Path, int, int]]:
        """What there is more of than here: path there, file here, where to begin, and how many bytes."""
        wanted, left_bytes = [], min(self._left_bytes, _MOST_BYTES)
        for line in lines:
            size, _, path = line.partition(" ")
            target = self._target(path)
            if target is None or not size.isdecimal() or self._machine_of.get(target, machine) != machine:
                continue
            begin = target.stat().st_size if target.exists() else 0
            if target.exists() and target not in self._machine_of:
                continue  # it came from a model
            if 0 < (count := int(size) - begin) <= left_bytes:
                wanted.append((path, target, begin, count))
                left_bytes -= count
        return wanted

    def _target(self, path: str) -> Path | None:
        """Where a file of a machine goes; None for what is no event file, or leads elsewhere."""
        parts = PurePosixPath(path).parts
        if not _PATH.fullmatch(path) or ".." in parts or "tfevents" not in parts[-1]:
            return None
        if parts[0] == "code":
            return self._directory.joinpath(*parts[1:])
        if len(parts) < 5:
            return None
        # The number of the attempt is no part of the name: TensorBoard joins the files of a folder.
        return self._directory.joinpath(*parts[1:3], *parts[4:])

    def _asked(self, machine: str, command: str) -> bytes:
        way = find_way(self._service, self._run, machine, self._environ, patience_s=0.0, is_for_others=True)
        words = [*way.command, "-T", "-o", "BatchMode=yes", way.address, f"exec sh -c {shlex.quote(command)}"]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise TrainmasterError(f"{machine} has not answered in {_ANSWER_S:g} s") from error
        return done.stdout
