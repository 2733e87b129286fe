"""A hook of the site's build: CONTRIBUTING.md and its like lie beside docs/, and are pages of it, too.

So are the results of the benchmarks, and what assistants read.
"""

import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ("benchmarks/RESULTS.md", "benchmarks/papers/RESULTS.md")
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", *RESULTS)
_LINK = re.compile(r"\]\(([^)\s#:]+\.md)")


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - MkDocs's own type
    """Add the pages."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    llms = runpy.run_path(str(ROOT / "scripts/llms.py"))
    short = llms["short"](config["nav"], config["site_description"])
    files.append(File.generated(config, "llms.txt", content=short))
    files.append(File.generated(config, "llms-full.txt", content=llms["full"](config["nav"])))
    return files


#: Search shows what users read before what developers read.
_BOOSTS = {
    "how/": 2,
    "tutorials/": 2,
    "quickstart": 3,
    "end-reasons": 3,
    "recipe": 3,
    "clusters": 2,
    "into-a-run": 2,
    "development/": 0.1,
    "architecture": 0.1,
    "CHANGELOG": 0.1,
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:  # noqa: ANN401
    """Links are written for the repository: rewrite those that lead to these pages, or from them."""
    name = page.file.src_uri
    page.meta["search"] = {"boost": next((by for at, by in _BOOSTS.items() if name.startswith(at)), 1)}
    folder = posixpath.dirname(name) if name in PAGES else posixpath.join("docs", posixpath.dirname(name))

    def rewritten(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))  # in the repository
        in_site = target if target in PAGES else target.removeprefix("docs/")
        return f"]({posixpath.relpath(in_site, posixpath.dirname(name) or '.')}"

    return _LINK.sub(rewritten, markdown)
