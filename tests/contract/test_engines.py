"""The example of docs/extend/engine.md, an engine of a stranger's, passes the contract of engines."""

import re
import sys
import tempfile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/extend/engine.md"
FILES = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)

with tempfile.TemporaryDirectory() as place:
    for name, text in FILES:
        assert len(text.splitlines()) <= 300, "an engine is to be written in 300 lines"
        Path(place, name).write_text(text)
    sys.path.insert(0, place)
    from test_allocation_engine import TestAllocation

    sys.path.remove(place)

__all__ = ["TestAllocation"]
