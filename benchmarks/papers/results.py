"""`python benchmarks/papers/results.py`: puts what `make seeds` has found into RESULTS.md beside it.

What stands between ``<!-- NAME -->`` and ``<!-- /NAME -->`` there is replaced: each claim with its answer
(`seeds`), and the tables of what a paper measured, by the name of its script. The text around them stays, so
read it again: it says what the tables mean.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tables import ANSWERS, OUT

RESULTS = Path(__file__).with_name("RESULTS.md")
#: Their claims are not among those of all, unless somebody has asked for them: they stay below their tables.
WHOLE = ("jorge_more",)


def placed(text: str, name: str, found: str) -> str:
    r"""The text with what was found between the marks of a name.

    Raises:
        ValueError: it has no such marks.

    >>> placed("a\n<!-- x -->\nold\n<!-- /x -->\nb", "x", "new\n")
    'a\n<!-- x -->\n\nnew\n\n<!-- /x -->\nb'
    """
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, is_there, rest = text.partition(begin)
    _, is_ended, after = rest.partition(end)
    if not (is_there and is_ended):
        raise ValueError(f"no marks of {name}")
    return f"{before}{begin}\n{found.strip()}\n\n{end}{after}"


def main() -> None:
    known = json.loads((OUT / "seeds.json").read_text())
    if known["quick"]:
        sys.exit("that was `--quick`: run `make seeds` without it first")
    text = RESULTS.read_text()
    for name in re.findall(r"^<!-- (\w+) -->$", text, re.MULTILINE):
        if name == "seeds":
            found = (OUT / "seeds.md").read_text()
        elif name in known["steps"] and (OUT / f"papers_{name}.json").exists():
            found = (OUT / f"papers_{name}.md").read_text()
            found = found if name in WHOLE else found.partition(ANSWERS)[0]
        else:
            print(f"{name}: not measured, so what is there stays")
            continue
        text = placed(text, name, found)
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
