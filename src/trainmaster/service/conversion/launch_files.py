"""What a launcher is told by a file: accelerate's configuration, DeepSpeed's list of hosts. Pure."""

from __future__ import annotations

import re
from typing import Final

from trainmaster.spec.node import Kind, Wording, compose

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
