"""`ForeignJob`: a script with what another tool starts it on, as an experiment. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainmaster.dataclass import dataclass, field
from trainmaster.service.conversion.draft import Draft, ExperimentDraft
from trainmaster.service.conversion.launch import LAUNCHERS, Launch, launch_of
from trainmaster.service.conversion.secrets import without_secrets
from trainmaster.service.conversion.shell import Command, Script, number_of, written_out

#: Files beside the one that is converted, by the path that a command names; empty if there is none.
Beside = Callable[[str], str]

#: Set for every rank: a script that sets them would set them wrongly.
_MAKES_ENVIRONMENT: Final = re.compile(r"-m venv\b|\buv venv\b|\bvirtualenv\s")
_OF_RANKS: Final = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"}
)
#: By their beginnings: the variables of each tool, and what `aliases` calls them.
ALIASES: Final = {"SLURM": "slurm", "SKYPILOT": "skypilot", "DSTACK": "dstack"}
_ALIAS: Final = re.compile(rf"\b({'|'.join(ALIASES)})D?_[A-Z][A-Z_]+\b")
_COMMENTS: Final = re.compile(r"^\s*#.*", re.MULTILINE)
#: Lines before the first command.
_HEAD: Final = re.compile(r"(?:[ \t]*(?:#.*)?\n)*")
_FILE: Final = re.compile(r"(?<![\w$/.-])((?:[\w.-]+/)*[\w.-]+\.(?:py|sh|bash))\b")
#: Of a setup: all of it only puts packages into an environment.
_INSTALLS: Final = re.compile(
    r"(?:(?:uv\s+)?pip3?|python[\d.]*\s+-m\s+pip)\s+install\s|(?:sudo\s+)?apt(?:-get)?\s|echo\s|export\s|:|#"
)
_IS_FIRST: Final = re.compile(
    r"""\[+\s*"?\$\{?(?:SKYPILOT_NODE_RANK|DSTACK_NODE_RANK|SLURM_NODEID|SLURM_PROCID)\}?"?\s*"""
    r"""(?:==?|-eq)\s*["']?0["']?\s*\]+"""
)
#: A value that is no secret itself, as what it refers to has it.
_REFERENCE: Final = re.compile(r"[\w.-]+=(?:\$\(\(.*?\)\)|\$\w+|\$\{\w+\})(?=\s|$)", re.MULTILINE)
_COUNTS_NODES: Final = re.compile(r"(?:SKYPILOT_NODE_IPS|DSTACK_NODES_IPS).*wc -l")
#: For accelerate: which of several machines it is on, whatever its configuration says.
_MEETS: Final = {
    "num_machines": "{nodes}",
    "num_processes": "{total}",
    "machine_rank": '"$RANK"',
    "main_process_ip": '"$MASTER_ADDR"',
    "main_process_port": '"$MASTER_PORT"',
}
#: What a script of several lines begins with where a line that fails ends nothing.
LENIENT: Final = "set +eu; set +o pipefail"
#: Where a setup that makes files has them, and where the command begins then.
_WORK: Final = 'cd "$VIRTUAL_ENV/work"'
#: What starts a script behind the shell, as `run --detach` does: it would end with the command here.
_DETACHED: Final = re.compile(
    r"(?:(?:[ \t]|\\\n)+(?:(?:[012]?>>?|&>>?|<)[ \t]*(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s&])+|[012]>&[012]))*"
    r"(?:[ \t]|\\\n)*(?<![&>])&(?:[ \t]*disown)?\s*\Z"
)
_APART: Final = re.compile(
    r"^([ \t]*(?:\w+=\S*[ \t]+)*)(?:(?:nohup|setsid(?:[ \t]+-[a-z]+)*)[ \t]+)+", re.MULTILINE
)
_NAMES_HOME: Final = re.compile(r"~|\bHOME\b")
_TO_CODE: Final = re.compile(r"\A((?:[ \t]*(?:#.*)?\n)*)[ \t]*cd ~/sky_workdir/?[ \t]*(?:\n|;|&&)[ \t]*")
_AT_HOME: Final = re.compile(r"\bcd ~(?:/sky_workdir\b)?(?=[/\s;&]|$)")


@dataclass(slots=True)
class ForeignJob:
    """What runs, and on what.

    Attributes:
        tool: whose variables it reads: ``slurm``, ``skypilot``, ``dstack`` or none.
        command: the script. line: where it begins in the file.
        nodes: how many machines. tasks: processes on each that the tool itself starts.
        gpus: of each machine.
        known: variables of the tool that are numbers.
        begins: the first line of scripts of several: what differs from `set -euo pipefail`.
    """

    tool: str
    command: str
    line: int = 1
    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    known: dict[str, int] = field(default_factory=dict)
    begins: str = LENIENT
    setup: str = ""

    def fill(self, draft: Draft, experiment: ExperimentDraft, beside: Beside) -> None:
        """Give an experiment its command, its setup and how many processes it has."""
        self._stay(draft)
        script = Script(written_out(self.command, LAUNCHERS), self.line)
        commands = script.commands()
        known = self._assigned(commands)
        found = [
            (each, launch)
            for each in commands
            if (launch := launch_of(each, lambda text: number_of(text, known), beside)) is not None
        ]
        launch = self._replaced(draft, script, found)
        self._gang(experiment, launch, found)
        has_ray = not found and self._without_ray(draft, experiment, script, commands)
        for each in commands:
            self._clean(draft, experiment, script, each, is_gang="distributed" in experiment.keys)
        command = script.changed()
        if has_ray or (launch is not None and launch.program in ("deepspeed", "mpirun")):
            command = _IS_FIRST.sub("true", command)  # the launcher went to the others by itself
        for hidden in self._masked(command):
            draft.decide(self.line, hidden, "a secret: its name under `secrets`, and $NAME here")
        self._write(draft, experiment, command, beside)

    def _stay(self, draft: Draft) -> None:
        """Have a script that is started in the background be the one that is waited for, and read."""
        self.command = _APART.sub(r"\1", self.command)
        if found := _DETACHED.search(self.command):
            line = self.line + self.command.count("\n", 0, found.start())
            draft.drop(line, found[0].strip(), "`trainmaster run --detach`, and `trainmaster logs RUN`")
            self.command = self.command[: found.start()]

    def _assigned(self, commands: list[Command]) -> dict[str, int]:
        """Numbers that variables have, as far as that is seen."""
        known = dict(self.known)
        for each in commands:
            for name, value in each.assignments():
                number = self.nodes if _COUNTS_NODES.search(value) else number_of(value, known)
                if number is not None:
                    known[name] = number
        return known

    def _replaced(self, draft: Draft, script: Script, found: list[tuple[Command, Launch]]) -> Launch | None:
        """The one launcher that is left out of the command; None if there is none, or it stays."""
        if not found:
            return None
        command, launch = found[0]
        line = script.line_of(command.start)
        if len({(each.program, each.nodes, each.each, each.total) for _, each in found}) > 1:
            draft.decide(line, launch.program, "launchers that differ: write an experiment for each")
            return None
        if launch.stays or self._ranks(launch) is None:
            why = launch.stays or "how many processes it starts is not said"
            draft.decide(line, launch.program, f"{why}: it stays, and starts the processes of its node")
            self.nodes = launch.nodes or self.nodes
            if launch.program == "accelerate" and self.nodes > 1:
                values = {"nodes": self.nodes, "total": launch.total or self.nodes * (self.gpus or 1)}
                for each, one in found:
                    said = script.text[each.start : one.end].replace("-", "_")
                    options = [
                        f"--{name} {value} " for name, value in _MEETS.items() if f"__{name}" not in said
                    ]
                    script.change(one.end, one.end, "".join(options).format_map(values))
            return None
        for each, one in found:
            program = each.words[each.assigns]
            script.change(program.start, one.end, one.starts)
            if one.passes_rank:
                script.change(each.end, each.end, ' --local_rank="$LOCAL_RANK"')
            draft.drop(line, script.text[program.start : one.end], "the gang is under `distributed`")
        return launch

    def _ranks(self, launch: Launch) -> tuple[int, int] | None:
        """Processes in all, and on each node."""
        if launch.program == "mpirun":
            total = launch.total or self.nodes * self.tasks
            return (total, -(-total // self.nodes)) if total else None
        nodes = launch.nodes or self.nodes
        if launch.total is not None:
            return (launch.total, max(1, launch.total // nodes)) if launch.total >= nodes else None
        each = self.gpus if launch.counts_gpus else launch.each
        if each is None and launch.program in ("accelerate", "deepspeed"):
            each = self.gpus or 1
        return None if launch.counts_gpus and not self.gpus else (nodes * (each or 1), each or 1)

    def _gang(
        self, experiment: ExperimentDraft, launch: Launch | None, found: list[tuple[Command, Launch]]
    ) -> None:
        ranks = self._ranks(launch) if launch is not None else None
        workers, each = ranks or (self.nodes * self.tasks, self.tasks)
        is_mpi = launch is not None and launch.program == "mpirun"
        if workers > 1:
            experiment.keys["distributed"] = {
                "strategy": "allreduce",
                "workers": workers,
                "per_node": each,
            }
        of_torch = bool(found) or re.search(
            r"torch|lightning|accelerate|deepspeed|transformers|MASTER_ADDR", self.command
        )
        if is_mpi:
            experiment.keys["framework"] = "mpi"
        elif found:
            experiment.keys["framework"] = "pytorch"
        elif workers > 1 and not of_torch and self.tool != "slurm":
            experiment.keys["framework"] = "plain"

    def _without_ray(
        self, draft: Draft, experiment: ExperimentDraft, script: Script, commands: list[Command]
    ) -> bool:
        """Leave out what makes a cluster of Ray, if anything does; the first member has one then."""
        calls = [(each, [word.text for word in each.arguments]) for each in commands if each.program == "ray"]
        if not any(words[:1] in (["start"], ["job"]) for _, words in calls):
            return False
        experiment.keys["framework"] = "ray"
        for each, words in calls:
            line = script.line_of(each.start)
            if words[:2] == ["job", "submit"] and "--" in words[:-1]:
                program = each.arguments[words.index("--") + 1]
                draft.drop(
                    line, script.text[each.start : program.start], "the command runs beside Ray's head"
                )
                script.change(each.start, program.start, "")
            elif words[:2] == ["job", "submit"]:
                draft.decide(line, "ray job submit", "write the command that it submits in its place")
            else:
                draft.drop(line, script.drop(each), "the gang is one Ray: the command runs beside its head")
        return True

    def _clean(
        self, draft: Draft, experiment: ExperimentDraft, script: Script, command: Command, *, is_gang: bool
    ) -> None:
        """Take out what is done for it, and what only the other machines have."""
        line = script.line_of(command.start)
        given = dict(command.assignments())
        if given and is_gang and set(given) <= _OF_RANKS:
            script.drop(command)
            draft.drop(line, ", ".join(given), "set for each rank")
        elif given and self._masked(script.text[command.start : command.end]):
            draft.drop(line, script.drop(command), "a secret: export it, or `trainmaster secrets set`")
            names = experiment.keys.setdefault("secrets", [])
            assert isinstance(names, list)
            names += [name for name in given if name not in names]
        elif command.program in ("source", ".") and not _MAKES_ENVIRONMENT.search(script.text + self.setup):
            text = command.arguments[0].text.strip("\"'") if command.arguments else ""
            if text.endswith("bin/activate"):
                draft.decide(line, text, "it is on that machine only: `setup` makes an environment")
        elif command.program == "module" or command.words[0].text == "ml":
            draft.drop(
                line,
                script.drop(command),
                "modules are that cluster's: `setup` or `container` bring them",
            )

    @staticmethod
    def _masked(text: str) -> list[str]:
        """Lines in it with a value that must not be copied, without that."""
        named = _REFERENCE.sub(lambda found: "x" * len(found[0]), text)
        masked = without_secrets(named)
        if masked == named:
            return []
        spans = [found.span() for found in re.finditer(r"\*+", masked)]
        ends = [(text.rfind("\n", 0, start) + 1, f"{text}\n".index("\n", end)) for start, end in spans]
        return [
            masked[begin:after].strip()
            for (start, end), (begin, after) in zip(spans, ends, strict=True)
            if named[start:end] != masked[start:end] and named[start] not in "$<{("
        ]

    def _write(self, draft: Draft, experiment: ExperimentDraft, command: str, beside: Beside) -> None:
        command, setup = command.strip("\n"), self.setup.strip("\n")
        if self.tool == "skypilot":  # the command begins there
            command = _TO_CODE.sub(r"\1", command)
        head = _HEAD.match(command)
        assert head is not None
        command = re.sub(r"\n\n+", "\n", head[0]) + command[head.end() :]  # `#SBATCH` stood there
        is_plain = all(_INSTALLS.match(line.strip()) for line in setup.split("\n") if line.strip())
        if setup and not is_plain:
            # What it makes beside packages is made once on each machine, as the environment is.
            setup = f'mkdir "$VIRTUAL_ENV/work"; cp -a . "$VIRTUAL_ENV/work"\n{_WORK}\n{setup}'
            if self.tool == "skypilot" and not _NAMES_HOME.search(setup):  # both begin at home there
                command = _AT_HOME.sub(_WORK, command)
            command = f"{_WORK}\n{command}"
            experiment.remarks["setup"] = "makes files, too: they lie beside the environment"
        hardware, words = (
            experiment.keys.get("hardware"),
            "the fewest is taken; `workers: 1..8` has it chosen",
        )
        if "distributed" in experiment.keys and isinstance(hardware, dict) and self.gpus:
            if hardware.get("gpus") != self.gpus:
                draft.decide(self.line, f"{hardware['gpus']} GPUs", words)
            hardware["gpus"] = self.gpus
        if re.search(r"^\s*uv\s", setup, re.MULTILINE):
            setup = f"command -v uv >/dev/null || pip install uv\n{setup}"
        elif not setup and re.search(r"^\s*uv\s", command, re.MULTILINE):
            setup = "command -v uv >/dev/null || pip install uv"
        if re.search(r"\bconda\s", setup + command):
            made = "has made" if self.setup else "makes"
            draft.decide(self.line, "conda", f"`setup` {made} an environment: conda may be left out")
        setup = f"{self.begins}\n{setup}" if "\n" in setup else setup
        command = f"{self.begins}\n{command}" if "\n" in command else command
        if setup:
            experiment.keys["setup"] = setup
        experiment.keys["command"] = command or "true"
        if experiment.keys.get("framework") == "mpi":  # it would look for Slurm
            return
        read = _ALIAS.findall(_COMMENTS.sub("", command))
        if self.tool in map(ALIASES.get, read):
            experiment.keys["aliases"] = self.tool
        else:
            for file in dict.fromkeys(_FILE.findall(command)):
                if found := _ALIAS.search(beside(file)):
                    experiment.keys["aliases"] = ALIASES[found[1]]
                    experiment.remarks["aliases"] = f"{file} reads {found[0]}"
                    break
