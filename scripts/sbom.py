"""``dist/sbom.json``: all packages that the one in ``dist/`` was tested with, as CycloneDX lists them.

Its tool is called from where it is, as ``make dist`` does: ``sbom.py PATH/cyclonedx-py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    """List what this interpreter has; the package's own version is that of the wheel."""
    (wheel,) = Path("dist").glob("trainmaster-*.whl")
    file = Path("dist/sbom.json")
    options = ["--pyproject", "pyproject.toml", "--output-format", "JSON", "-o", file]
    subprocess.run([sys.argv[1], "environment", *options, sys.executable], check=True)
    bill = json.loads(file.read_text(encoding="utf-8"))
    bill["metadata"]["component"]["version"] = wheel.name.split("-")[1]  # `pyproject.toml` has none
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    print(f"{file} lists {len(bill['components'])} packages")


if __name__ == "__main__":
    main()
