"""`launch_of`: what starts several processes of a script: torchrun, accelerate, deepspeed, mpirun. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainmaster.dataclass import dataclass
from trainmaster.service.conversion.shell import Command, Word
from trainmaster.spec.node import Kind, Wording, compose

#: Options without a value; all others have one.
_FLAGS: Final = {
    "torchrun": {"standalone", "no-python", "run-path", "m", "module", "use-env", "h", "help"},
    "accelerate": {
        "multi-gpu", "cpu", "no-python", "m", "module", "debug", "use-cpu", "quiet", "q", "same-network",
    },
    "deepspeed": {
        "no-local-rank", "no-python", "module", "bind-cores-to-rank", "no-ssh", "force-multi", "no-ssh-check",
        "save-pid", "enable-each-rank-log",
    },
    "mpirun": {
        "allow-run-as-root", "oversubscribe", "use-hwthread-cpus", "report-bindings", "tag-output", "v", "q",
        "display-map", "nolocal", "verbose", "quiet",
    },
}  # fmt: skip
#: Of accelerate: what says more than how many processes there are. These stay, and start them on each node.
_CONFIGURED: Final = re.compile(
    r"config-file|use-(?!cpu).*|fsdp.*|deepspeed.*|zero.*|tpu.*|mpirun.*|megatron.*|ipex"
)
_PAIRS: Final = ("mca", "gmca")
#: Options of `python` before ``-m``.
_PYTHON: Final = re.compile(r"python[\d.]*")
_MODULES: Final = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
LAUNCHERS: Final = (*_FLAGS, *_MODULES, "mpiexec", "accelerate-launch")
_NODES: Final = ("nnodes", "num-machines", "num-nodes")
_EACH: Final = ("nproc-per-node", "num-gpus")
_ALL: Final = ("num-processes", "np", "n", "c")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a launcher is called.

    Attributes:
        program: ``torchrun``, ``accelerate``, ``deepspeed`` or ``mpirun``.
        end: where what it starts begins.
        starts: what is written in its place before that.
        nodes: how many it says; None if nothing.
        each: processes on each of them; ``gpu`` where it counts them; None if it says nothing.
        total: processes in all.
        stays: why the launcher cannot be left out; empty if it can.
        passes_rank: it gives scripts ``--local_rank``.
    """

    program: str
    end: int
    starts: str
    nodes: int | None = None
    each: int | None = None
    total: int | None = None
    counts_gpus: bool = False
    stays: str = ""
    passes_rank: bool = False


def launch_of(
    command: Command, number: Callable[[str], int | None], beside: Callable[[str], str] = lambda path: ""
) -> Launch | None:
    """The call of a launcher that a command is; None if it is none.

    Args:
        command: of a script.
        number: what an option's value is, if that is known.
        beside: the text of a file that it names; empty if there is none.

    Raises:
        RecipeError: a file that it names is no YAML.
    """
    program, words, legacy = _program(command)
    if not program:
        return None
    known: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "--":
        name, has_value, value = words[at].text.partition("=")
        name = name.lstrip("-").replace("_", "-")
        flag = name in _FLAGS[program] or bool(has_value) or (program == "accelerate" and name[:4] == "use-")
        if not flag:
            value = words[at + 1].text if at + 1 < len(words) else ""
        known[name] = value
        at += 1 if flag else 3 if program == "mpirun" and name in _PAIRS else 2
    if at < len(words) and words[at].text == "--":
        at += 1
    if at >= len(words):
        return None
    more = ""
    if program == "accelerate" and (text := beside(file := known.get("config-file", "").strip("\"'"))):
        options, more = accelerate_options(text, file)
        known = options | {name: value for name, value in known.items() if name != "config-file"}
        more = f"{more} of {file} is accelerate's" if more else ""
    if program == "deepspeed" and (text := beside(known.get("hostfile", "").strip("\"'"))):
        machines, slots = hosts_of(text)
        known = {"num-nodes": str(machines), "num-gpus": str(slots)} | known if machines else known
    return _made(program, words[at].start, known, number, more, legacy=legacy)


def _made(
    program: str,
    end: int,
    known: dict[str, str],
    number: Callable[[str], int | None],
    stays: str,
    *,
    legacy: bool,
) -> Launch:
    runs_module = any(name in known for name in ("m", "module"))
    runs_program = "no-python" in known or program == "mpirun"
    starts = "" if runs_program else "python -m " if runs_module else "python "
    if mixed := known.get("mixed-precision", ""):
        starts = f"ACCELERATE_MIXED_PRECISION={mixed} {starts}"
    if "cpu" in known or "use-cpu" in known:
        starts = f"ACCELERATE_USE_CPU=true {starts}"
    said = {name: known[name] for name in (*_NODES, *_EACH, *_ALL) if name in known}
    counted = {name: number(value.rpartition(":")[2]) for name, value in said.items()}
    unknown = [f"--{name} {value}" for name, value in said.items() if counted[name] is None]
    counts_gpus = known.get("nproc-per-node", "").strip("\"'") in ("gpu", "auto")
    unknown = [] if counts_gpus else unknown
    if unknown:
        stays = f"{unknown[0]} is known when it runs"
    if program == "accelerate" and (
        more := next((name for name in known if _CONFIGURED.fullmatch(name)), "")
    ):
        stays = f"--{more.replace('-', '_')} is for accelerate"
    if {"run-path", "include", "exclude"} & set(known):
        stays = "of its options some have no other way"
    return Launch(
        program,
        end,
        starts,
        next((counted[name] for name in _NODES if name in counted), None),
        next((counted[name] for name in _EACH if name in counted), None),
        next((counted[name] for name in _ALL if name in counted), None),
        counts_gpus,
        stays,
        (legacy and "use-env" not in known) or (program == "deepspeed" and "no-local-rank" not in known),
    )


def _program(command: Command) -> tuple[str, tuple[Word, ...], bool]:
    """Which launcher it is, the words behind its name, and whether it is PyTorch's old one."""
    name, words = command.program, command.arguments
    texts = [word.text for word in words]
    if name in ("torchrun", "deepspeed"):
        return name, words, False
    if name in ("mpirun", "mpiexec"):
        return "mpirun", words, False
    if name in ("accelerate", "accelerate-launch"):
        skipped = 0 if name == "accelerate-launch" else 1 if texts[:1] == ["launch"] else None
        return ("", (), False) if skipped is None else ("accelerate", words[skipped:], False)
    if _PYTHON.fullmatch(name):
        at = next((at for at, text in enumerate(texts) if text == "-m" or not text.startswith("-")), 0)
        if texts[at : at + 1] == ["-m"] and len(texts) > at + 1 and texts[at + 1] in _MODULES:
            module = texts[at + 1]
            return _MODULES[module], words[at + 2 :], module.endswith(".launch") and "torch" in module
    return "", (), False


_ACCELERATE: Final = Wording("a configuration of accelerate", "configurations", "a mapping")
#: Keys that have an option of the same meaning.
_OPTIONS: Final = ("num_machines", "num_processes", "mixed_precision", "use_cpu")
#: How it distributes where variables of the ranks say all of it.
_PLAIN: Final = ("NO", "MULTI_GPU", "MULTI_CPU")
_HOST: Final = re.compile(r"^\s*([^\s#]+)[ \t]+slots\s*=\s*(\d+)", re.MULTILINE)


def accelerate_options(text: str, file: str) -> tuple[dict[str, str], str]:
    r"""The options that a configuration stands for, and what of it only accelerate can do; empty if nothing.

    Args:
        text: what stands in the file.
        file: its name.

    Raises:
        RecipeError: it is no YAML, with the place in it.

    >>> accelerate_options("distributed_type: FSDP\nnum_processes: 8\n", "fsdp.yaml")
    ({'num-processes': '8'}, 'FSDP')
    """
    root = compose(text, file, _ACCELERATE)
    known = {name: node.text.strip() for name, node in root.entries.items() if node.kind is Kind.SCALAR}
    options = {name.replace("_", "-"): known[name] for name in _OPTIONS if known.get(name)}
    if options.get("use-cpu", "").lower() in ("false", "no"):
        del options["use-cpu"]
    if options.get("mixed-precision", "").lower() in ("no", "false"):
        del options["mixed-precision"]
    kind = known.get("distributed_type", "NO").upper()
    sections = [name for name, node in root.entries.items() if name.endswith("_config") and node.entries]
    return options, kind if kind not in _PLAIN else next(iter(sections), "")


def hosts_of(text: str) -> tuple[int, int]:
    r"""How many machines a list of hosts has, and the fewest slots of one; zeros if it is none.

    >>> hosts_of("# ours\nworker-1 slots=4\nworker-2 slots=4\n")
    (2, 4)
    """
    slots = [int(count) for _, count in _HOST.findall(text)]
    return len(slots), min(slots, default=0)
