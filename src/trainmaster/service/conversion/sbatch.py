"""`read_sbatch`: a batch script of Slurm: its options, its script with `srun`, its array. Pure."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath
from typing import Final

from trainmaster.providers.slurm.answers import limit_seconds
from trainmaster.service.conversion.description import size_of
from trainmaster.service.conversion.draft import Draft, ExperimentDraft
from trainmaster.service.conversion.job import Beside, ForeignJob
from trainmaster.service.conversion.launch import LAUNCHERS
from trainmaster.service.conversion.shell import Command, Script, Word, number_of, written_out

_DIRECTIVE: Final = re.compile(r"#SBATCH\s+(.*)")
_NOT_SHELL: Final = re.compile(r"#+\s*SBATCH\b|#!")
#: What a first line names that runs the script, with its options; `env` finds it.
_INTERPRETER: Final = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(?:\S*/)?(\S+)(.*)")
_SHELLS: Final = ("sh", "bash", "dash", "ash", "ksh", "zsh")
_SHORT: Final = {
    "J": "job-name", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus", "t": "time",
    "a": "array", "d": "dependency", "D": "chdir", "p": "partition", "A": "account", "q": "qos",
    "w": "nodelist", "x": "exclude", "o": "output", "e": "error", "i": "input", "L": "licenses",
    "l": "label", "u": "unbuffered", "k": "no-kill", "K": "kill-on-bad-exit", "m": "distribution",
    "C": "constraint", "s": "oversubscribe", "W": "wait",
}  # fmt: skip
#: Options of sbatch and srun without a value.
_FLAGS: Final = frozenset(
    {
        "exclusive", "requeue", "no-requeue", "label", "unbuffered", "oversubscribe", "overlap", "exact",
        "kill-on-bad-exit", "wait", "contiguous", "hold", "multi-prog", "pty", "quiet", "verbose",
        "no-kill", "overcommit", "parsable", "no-container-mount-home", "container-writable",
        "spread-job", "use-min-nodes",
    }
)  # fmt: skip
_REASONS: Final = {
    "partition": "where it runs is the `provider`",
    "account": "teams and budgets are the server's",
    "qos": "`priority: high` on a server with a queue",
    "output": "`trainmaster logs RUN`",
    "error": "`trainmaster logs RUN`",
    "requeue": "lost machines are replaced, and `trainmaster resume RUN`",
    "exclusive": "machines of a run are its own",
    "mail-type": "`notify`, see docs/recipe.md",
    "mail-user": "`notify`, see docs/recipe.md",
    "mem": "0 is all memory of a machine",
    "signal": "SIGTERM says that the time is over, and `grace` how long it then has",
}
_DECISIONS: Final = {
    "dependency": "`after: [OTHER]` in a recipe that has both as experiments",
    "constraint": "`hardware: {gpu: MODEL}` or `instance`",
    "chdir": "`code` is the directory that is sent",
    "hetjob": "jobs of several kinds of machines: an experiment for each",
    "packjob": "jobs of several kinds of machines: an experiment for each",
}
#: What stands between the options of a job's parts.
_KINDS: Final = ("hetjob", "packjob")
_GRES: Final = re.compile(r"gpu(?::([A-Za-z][\w.-]*))?(?::(\d+))?")
_MODEL: Final = re.compile(r"(?:([A-Za-z][\w.-]*):)?(\d+)|([A-Za-z][\w.-]*)")
_HOSTS: Final = re.compile(r"scontrol\s+show\s+hostnames?\s+(\"[^\"]*\"|\$\{?\w+\}?)")
_HOSTS_ALONE: Final = re.compile(r"scontrol\s+show\s+hostnames?(?=\s*[)|`])")
_NODE: Final = re.compile(
    r"srun\s[^|)`]*?(?:-w\s*|--nodelist[= ])(\"?\$\{?[\w\[\]]+\}?\"?)[^|)`]*?\bhostname\b[^|)`]*"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ARRAY: Final = "SLURM_ARRAY_TASK_ID"
_MOST_TASKS: Final = 100_000


def read_sbatch(source: str, file: str, name: str, beside: Beside) -> Draft:
    """A draft of the recipe that a batch script is.

    Args:
        source: the script.
        file: its name.
        name: of the recipe, if the script gives none.
        beside: the text of a file that its commands name.
    """
    return _SbatchReader(source, file, name, beside).read()


class _SbatchReader:
    def __init__(self, source: str, file: str, name: str, beside: Beside) -> None:
        self._source = source
        self._file = file
        self._beside = beside
        self._draft = Draft("sbatch", name)
        self._experiment = ExperimentDraft("main")
        self._draft.experiments.append(self._experiment)
        #: Values of options by their long names, with their lines.
        self._options: dict[str, tuple[str, int]] = {}

    def read(self) -> Draft:
        body = written_out(self._directives(), LAUNCHERS)
        if (found := self._options.get("job-name")) and _NAME.fullmatch(found[0]):
            self._draft.name = found[0]
        nodes, tasks = self._shape()
        gpus = self._hardware(nodes, tasks)
        self._limits()
        self._array()
        for option, (value, line) in self._options.items():
            self._rest(option, value, line)
        cpus = self._number("cpus-per-task")
        known = {
            "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": nodes * tasks,
            "SLURM_NPROCS": nodes * tasks, "SLURM_NTASKS_PER_NODE": tasks, "SLURM_CPUS_PER_TASK": cpus or 1,
        }  # fmt: skip
        known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_GPUS_PER_NODE": gpus} if gpus else {}
        command, is_spread = self._steps(body, nodes, tasks, known)
        job = ForeignJob(
            "slurm", command, 1, nodes if is_spread else 1, tasks if is_spread else 1, gpus, known
        )
        job.fill(self._draft, self._experiment, self._beside)
        if not is_spread and nodes * tasks > 1 and "distributed" not in self._experiment.keys:
            self._draft.decide(
                1,
                f"{nodes} x {tasks} tasks",
                "nothing in the script starts them (srun, torchrun): it is one process",
            )
        return self._draft

    def _directives(self) -> str:
        """Read the options; the script without them, on the same lines.

        Of a script that is none of a shell, what runs it: its options are comments to that, too.
        """
        lines = self._source.split("\n")
        for number, line in enumerate(lines):
            if found := _DIRECTIVE.match(line):
                self._option_line(found[1], number + 1)
            elif line.strip() and not line.lstrip().startswith("#"):
                break  # Slurm looks no further
        runs = _INTERPRETER.match(self._source)
        if runs is not None and runs[1] not in _SHELLS:
            file = PurePath(self._file).name
            self._draft.decide(1, runs[0], f"{file} is run as it is: it has to lie where the recipe does")
            if "SLURM_" in self._source:
                self._experiment.keys["aliases"] = "slurm"
            return " ".join((runs[1] + runs[2].rstrip(), shlex.quote(file)))
        return "\n".join("" if _NOT_SHELL.match(line) else line for line in lines)

    def _option_line(self, text: str, line: int) -> None:
        try:
            words = shlex.split(text, comments=True)
        except ValueError:
            words = text.split()
        if words and words[0] in _KINDS:
            self._options[words[0]] = ("", line)
        at = 0
        while at < len(words):
            name, value, at = _option([Word(word, 0, 0) for word in words], at)
            if name:
                self._options[name] = (value, line)

    def _take(self, name: str) -> str:
        return self._options.pop(name, ("", 0))[0]

    def _number(self, name: str) -> int | None:
        value = self._options.get(name, ("", 0))[0].partition("-")[0]
        return int(value) if value.isdecimal() and int(value) else None

    def _shape(self) -> tuple[int, int]:
        """How many nodes, and tasks on each."""
        total, each = self._number("ntasks"), self._number("ntasks-per-node")
        nodes = self._number("nodes") or (max(1, (total or 1) // each) if each else 1)
        tasks = each or -(-(total or nodes) // nodes)
        for name in ("ntasks", "ntasks-per-node", "nodes"):
            self._take(name)
        return nodes, tasks

    def _hardware(self, nodes: int, tasks: int) -> int:
        hardware: dict[str, object] = {}
        cpus = (self._number("cpus-per-task") or 0) * tasks
        model, gpus = "", 0
        for name, times, share in (
            ("gres", 1, 1),
            ("gpus-per-node", 1, 1),
            ("gpus-per-task", tasks, 1),
            ("gpus", 1, nodes),
        ):
            value = self._options.get(name, ("", 0))[0]
            found = _GRES.fullmatch(value) if name == "gres" else _MODEL.fullmatch(value)
            if found:
                kind = (found[1] or "") if name == "gres" else (found[1] or found[3] or "")
                model, gpus = kind or model, max(1, int(found[2] or 1) * times // share)
                self._take(name)
        cpus = cpus or (self._number("cpus-per-gpu") or 0) * gpus
        if cpus:
            hardware["cpus"] = cpus
        if model:
            hardware["gpu"] = model
        if gpus:
            hardware["gpus"] = gpus
        for name, times in (("mem", 1), ("mem-per-cpu", cpus or tasks), ("mem-per-gpu", gpus or 1)):
            value = self._options.get(name, ("", 0))[0]
            each = value if value[-1:].isalpha() else f"{value}M" * bool(value)
            if each and (
                size := size_of(f"{int(each[:-1]) * times}{each[-1]}" if each[:-1].isdecimal() else "")
            ):
                hardware["memory"] = size
                self._take(name)
        if (disk := size_of(self._options.get("tmp", ("", 0))[0])) is not None:
            hardware["disk"] = disk
            self._take("tmp")
        for name in ("cpus-per-task", "cpus-per-gpu"):
            self._take(name)
        if hardware:
            self._experiment.keys["hardware"] = hardware
        return gpus

    def _limits(self) -> None:
        if (seconds := limit_seconds(self._options.get("time", ("", 0))[0])) is not None:
            self._experiment.keys["timeout"] = _duration(round(seconds))
            self._take("time")
        signal = self._options.get("signal", ("", 0))[0].rpartition("@")
        if signal[1] and signal[2].isdecimal() and "TERM" in signal[0]:
            self._experiment.keys["grace"] = _duration(int(signal[2]))
            self._take("signal")
        image = self._options.get("container-image", ("", 0))[0].replace("#", "/").removeprefix("docker://")
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*", image):
            self._experiment.keys["container"] = image
            self._take("container-image")
        if environment := self._options.get("export", ("", 0))[0]:
            given = dict(each.split("=", 1) for each in environment.split(",") if "=" in each)
            if given:
                self._experiment.keys["env"] = given
            for name in environment.split(","):
                if "=" not in name and name not in ("ALL", "NONE", "NIL", ""):
                    what = "the shell that submits has it: its value under `env`, or its name under `secrets`"
                    self._draft.decide(self._options["export"][1], f"--export={name}", what)
            self._take("export")
        if self._options.get("chdir", ("", 0))[0] in (".", "./"):
            self._take("chdir")

    def _array(self) -> None:
        value, line = self._options.get("array", ("", 0))
        if not value:
            return
        spec, _, most = value.partition("%")
        if (numbers := _numbers(spec)) is None:
            return
        self._take("array")
        is_range = len(numbers) > 8 and numbers == list(range(numbers[0], numbers[-1] + 1))
        self._experiment.keys["parameters"] = {
            ARRAY: {"range": f"{numbers[0]}-{numbers[-1]}", "step": 1} if is_range else numbers
        }
        self._experiment.keys["aliases"] = "slurm"
        if most.isdecimal():
            self._experiment.keys["workers"] = int(most)
            self._draft.decide(line, f"%{most}", "`workers` is how many nodes (here: slots) they spread over")

    def _rest(self, option: str, value: str, line: int) -> None:
        text = option if option in _KINDS else f"--{option}={value}" if value else f"--{option}"
        if option in _DECISIONS:
            self._draft.decide(line, text, _DECISIONS[option])
        elif option != "job-name":
            self._draft.drop(line, text, _REASONS.get(option, "no key of a recipe says it"))

    def _steps(self, body: str, nodes: int, tasks: int, known: dict[str, int]) -> tuple[str, bool]:
        """The script without `srun`, and whether it starts the tasks: each member is one of them."""
        script = Script(body)
        is_spread = False
        for command in script.commands():
            for word in command.words:
                text = _HOSTS.sub(r"tr , '\\n' <<< \1", _NODE.sub(r"echo \1", word.text))
                text = _HOSTS_ALONE.sub("tr , '\\\\n' <<< \"$SLURM_JOB_NODELIST\"", text)
                if text != word.text:
                    script.change(word.start, word.end, text)
            if command.program == "scontrol" and [each.text for each in command.arguments[:2]] in (
                ["show", "hostnames"],
                ["show", "hostname"],
            ):
                given = command.arguments[2].text if len(command.arguments) > 2 else '"$SLURM_JOB_NODELIST"'
                script.change(command.words[command.assigns].start, command.end, f"tr , '\\n' <<< {given}")
            if command.program == "sbatch":
                self._draft.decide(
                    script.line_of(command.start),
                    script.text[command.start : command.end],
                    "an experiment with `after` in place of a job that this one sends",
                )
            if command.program == "srun":
                is_spread = self._step(script, command, nodes * tasks, known) or is_spread
        text = script.changed()
        if "SLURM_TMPDIR" in text:
            text = f"export SLURM_TMPDIR=$(mktemp -d)\n{text}"
            self._draft.decide(1, "SLURM_TMPDIR", "a new directory of each process; it stays in /tmp")
        return text, is_spread

    def _step(self, script: Script, command: Command, tasks: int, known: dict[str, int]) -> bool:
        """Leave `srun` out; whether all tasks do what it starts."""
        words, at, given = command.arguments, 0, dict[str, str]()
        while at < len(words) and (words[at].text.startswith("-") or words[at].text.startswith("${")):
            if words[at].text.startswith("$"):
                at += 1
                continue
            name, value, at = _option(list(words), at)
            given[name] = value
        if at >= len(words):
            return False
        number = {name: number_of(value, known) for name, value in given.items()}
        count = number.get("ntasks") or (1 if number.get("nodes") == 1 else None) or tasks
        first = command.words[command.assigns].start
        line = script.line_of(command.start)
        runs = words[at].start
        if image := given.get("container-image"):
            self._draft.decide(line, f"--container-image={image}", "`container: IMAGE`")
        kept = {name: value for name, value in given.items() if name not in _SHAPES}
        if kept:
            shown = " ".join(f"--{name}={value}" if value else f"--{name}" for name, value in kept.items())
            self._draft.drop(line, f"srun {shown}", "members of a gang are started together")
        if count >= tasks:
            script.change(first, runs, "")
            return True
        is_each_node = (number.get("ntasks-per-node") == 1 or given.get("nodes")) and count > 1
        which = "SLURM_LOCALID" if is_each_node else "SLURM_PROCID"
        script.change(first, runs, f'[ "${which}" != 0 ] || ')
        return False


_SHAPES: Final = (
    "ntasks",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "gpus",
    "gpus-per-task",
    "nodelist",
    "label",
)


def _option(words: list[Word], at: int) -> tuple[str, str, int]:
    """The option at a place: its long name, its value, and the place behind it."""
    text = words[at].bare
    if text.startswith("--"):
        name, has_value, value = text[2:].partition("=")
        if has_value or name in _FLAGS or at + 1 >= len(words) or words[at + 1].text.startswith("-"):
            return name, value, at + 1
        return name, words[at + 1].bare, at + 2
    if text.startswith("-") and len(text) > 1:
        name = _SHORT.get(text[1], text[1])
        if len(text) > 2 or name in _FLAGS:
            return name, text[2:].removeprefix("="), at + 1
        return name, words[at + 1].bare if at + 1 < len(words) else "", at + 2
    return "", "", at + 1


def _duration(seconds: int) -> str:
    """As recipes have it, in the largest unit without a rest."""
    for unit, name in ((3600, "h"), (60, "m")):
        if seconds % unit == 0:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"


def _numbers(spec: str) -> list[int] | None:
    """The indices of an array; None if it is none that is understood.

    >>> _numbers("1,4-6,10-20:5"), _numbers("1-$N")
    ([1, 4, 5, 6, 10, 15, 20], None)
    """
    found: list[int] = []
    for part in spec.split(","):
        if (match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())) is None:
            return None
        first = int(match[1])
        last, step = int(match[2] or first), int(match[3] or 1) or 1
        if last - first > _MOST_TASKS * step:
            return None
        found += range(first, last + 1, step)
    return list(dict.fromkeys(found))
