"""``tests/integration/clients/DATE.tar.xz``: the client of a commit, which later servers have to serve.

``python scripts/make_client.py DATE COMMIT``, whenever a version is released. Packed is what `VERBS` import
of the commit's package when they ask a server; ``tests/integration/test_released_client.py`` asks today's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = ROOT / "tests/integration/clients"
RECIPE = "name: asked\nexperiments:\n  main: {command: python train.py, retries: 0}\n"
SCRIPT = """\
import json, os
with open(os.environ["TRAINMASTER_METRICS"], "a") as file:
    file.write(json.dumps({"step": 1, "loss": 0.5}) + "\\n")
print("trained")
with open(os.environ["TRAINMASTER_OUTPUT_DIR"] + "/model.txt", "w") as file:
    file.write("weights")
"""
#: Notes what was imported: what `importlib` is asked for is missing in what ``-X importtime`` prints.
NOTE = """\
import atexit, os, sys
def note():
    with open(os.environ["IMPORTED"], "a") as file:
        file.writelines(name + "\\n" for name in list(sys.modules) if name.startswith("trainmaster"))
atexit.register(note)
"""
VERBS = (
    "run recipe.yaml",
    "status --json",
    "status latest --json",
    "status latest",
    "logs latest",
    "logs latest -f",
    "models --json",
    "models get latest got",
    "cancel latest --json",
    "resume latest --json",
    "offers --json",
    "clusters --json",
    "score --json",
)


def main() -> None:
    """Have the client of the commit ask the present server, and pack what it has imported."""
    date, commit = sys.argv[1:]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
        (place / "recipe.yaml").write_text(RECIPE)
        (place / "train.py").write_text(SCRIPT)
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TRAINMASTER_")}
        home = plain | {"TRAINMASTER_HOME": str(place / "home"), "TRAINMASTER_CACHE": str(place / "cache")}
        command = [sys.executable, "-m", "trainmaster"]
        with subprocess.Popen(
            [*command, "server", "--port", "0", "--json"], env=home, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            try:
                url = json.loads(server.stdout.readline())["url"]
                made = subprocess.run(
                    [*command, "token", "create", "old", "--scopes", "read,run", "--json"],
                    env=home, check=True, capture_output=True, text=True,
                )  # fmt: skip
                asking = plain | {
                    "TRAINMASTER_URL": url,
                    "TRAINMASTER_TOKEN": json.loads(made.stdout)["token"],
                    "TRAINMASTER_HOME": str(place / "laptop"),
                    "XDG_CONFIG_HOME": str(place / "config"),
                    "PYTHONPATH": f"{place / 'note'}:{place / 'src'}",
                    "IMPORTED": str(place / "imported"),
                }
                (place / "note").mkdir()
                (place / "note" / "sitecustomize.py").write_text(NOTE)
                for verb in VERBS:
                    told = subprocess.run(
                        [*command, *verb.split()],
                        cwd=place,
                        env=asking,
                        capture_output=True,
                        text=True,
                        check=False,
                    )
                    if told.returncode:
                        sys.exit(f"{verb}: {told.stderr}")
                files = {place / "src/trainmaster/__main__.py"}
                for name in (place / "imported").read_text().split():
                    path = place / "src" / name.replace(".", "/")
                    files.add(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
            finally:
                server.terminate()
        CLIENTS.mkdir(exist_ok=True)
        packed = CLIENTS / f"{date}.tar.xz"
        with tarfile.open(packed, "w:xz") as tar:
            for path in sorted(files):
                tar.add(path, str(path.relative_to(place / "src")), filter=_plain)
    print(f"{packed}: {len(files)} files, {packed.stat().st_size} bytes")


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Nobody's."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
