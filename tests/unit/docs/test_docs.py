"""What the pages say is checked as far as a machine can: links, code, recipes, commands, names of files."""

from __future__ import annotations

import itertools
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import click
import pytest
from ruamel.yaml import YAML

from command_line import whole_command
from trainmaster.providers.im.settings import IM
from trainmaster.providers.inventory import read_inventory
from trainmaster.providers.kubernetes.settings import KUBERNETES
from trainmaster.providers.openstack.settings import OPENSTACK
from trainmaster.providers.ray.settings import RAY
from trainmaster.providers.slurm.settings import SLURM
from trainmaster.spec import EndReason, Experiment, Recipe, read_recipe
from trainmaster.spec.gate import Requirement
from trainmaster.spec.reading import keys_of
from trainmaster.spec.search import Search
from trainmaster.spec.serve import Serve

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src/trainmaster"
PAGES = sorted(
    {
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        *DOCS.rglob("*.md"),
    }
)
CELL_MOST = 200
WORDS_MOST = 1600  # 1,500, and room for who adds a paragraph
#: Looked things up in, not read.
REFERENCE = {
    "advisor-numbers.md", "architecture.md", "cli.md", "dependencies.md", "end-reasons.md", "keys.md",
    "migrate.md", "recipe.md", "rest.md", "verbs.md",
}  # fmt: skip
#: Variables by which processes of ours tell each other something, and examples.
OURS = {
    f"TRAINMASTER_{name}"
    for name in (
        "ATTEMPT_ID", "AWS_INSIDE_VPC", "CLAIMS", "DATA_DATA", "DATA_FILES", "DATA_MODEL", "DRIVES",
        "EXEC", "HOME_ID", "IMAGE_JAX", "KEYS_EXPIRE", "LOGIN_TEAM", "MESSAGE_ID", "NODE_FILE",
        "OPENSTACK_CACERT", "PARAM_SLURM_ARRAY_TASK_ID", "RAY_ADDRESS", "RAY_CLIENT_PORT", "RAY_HOST",
        "RAY_MEMBERS_HERE", "RAY_PYTHON", "RAY_VARIABLES", "ROLES", "ROLES_CALL", "SETUP", "SETUP_OF",
    )
}  # fmt: skip
#: Pages whose names of files must be those of the tree.
ABOUT_CODE = [page for page in PAGES if page.parent in (DOCS / "development", DOCS / "extend")] + [
    DOCS / "architecture.md",
    ROOT / "CONTRIBUTING.md",
]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:[\w-]+/)*[\w-]+(?:/(?![\w(])|\.(?:py|js|css|html))")


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in _blocks(page) if block.language == language]


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _FENCE.finditer(text):
        inside = re.sub(rf"^{found[1]}", "", found[3], flags=re.MULTILINE)
        yield Block(page, text.count("\n", 0, found.start()) + 1, found[2], inside)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What headings are called in links, as GitHub and the site's table of contents do."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
        found.add(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"`[^`\n]+`", "", prose(page))
    wrong = []
    for target in (a or b for a, b in _LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            wrong.append(f"{target}: there is no such file")
        elif anchor and anchor not in anchors(file):
            wrong.append(f"{target}: there is no such heading")
    assert not wrong


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.where)
def test_recipes_are_read_without_mistakes(block, tmp_path):
    found = YAML(typ="safe").load(block.text)
    if not isinstance(found, dict) or not {"experiments", "command"} & found.keys():
        return  # of another program, or a part of a recipe
    text = block.text
    if "experiments" not in found:
        if "{{" in text and "parameters" not in found:
            return  # a part of an experiment: what it fills in is said elsewhere
        text = "experiments:\n  main:\n" + re.sub(r"^(?=.)", "    ", text, flags=re.MULTILINE)
    file = tmp_path / "recipe.yaml"
    file.write_text(re.sub(r"^(include|env_file): (?:\S*/)?(\S+)$", r"\1: \2", text, flags=re.MULTILINE))
    for name in filter(None, (found.get("include"), found.get("env_file"))):
        (tmp_path / Path(name).name).write_text("# nothing\n" if name == ".env" else "x-shared: 1\n")
    assert read_recipe(file).experiments


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.where)
def test_python_compiles(block):
    compile(block.text, block.where, "exec")


@pytest.mark.parametrize("block", blocks("console"), ids=lambda block: block.where)
def test_commands_have_the_verbs_and_options_of_the_command_line(block):
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        command = re.match(r"\$ (?:\w+=\S+ )*(?:\S+/)?trainmaster (.*)", line)
        if command:
            _parse(command[1])


def test_blocks_of_commands_say_that_they_are():
    """Else nobody looks at their verbs and options."""
    assert [block.where for block in blocks("") if re.match(r"\$ ", block.text)] == []


def _names(noun: type) -> set[str]:
    return {key.name for _, key in keys_of(noun)} | {name for name, _ in getattr(noun, "hoisted", ())}


def _whole(part: str, keys: set[str]) -> str:
    """A recipe with a part of one, of an experiment or of its `serve`; empty if it is none of these."""
    run = "experiments:\n  main:\n"
    command = "    command: python train.py\n"
    if keys <= _names(Recipe):
        return f"{part}\n{run}{command}"
    if keys <= _names(Experiment):
        needed = {"parameters": "{lr: 1-2}", "samples": "8"} if "search" in keys else {}
        lacks = "".join(f"    {key}: {value}\n" for key, value in needed.items() if key not in keys)
        return run + indent(part, "    ") + lacks + (command if "serve" not in keys else "")
    if keys <= _names(Serve):
        return f"{run}    serve:\n{indent(part, '      ')}      command: python serve.py\n"
    return ""


@pytest.mark.parametrize("block", blocks("yaml"), ids=lambda block: block.where)
def test_parts_of_recipes_are_read_without_mistakes(block, tmp_path):
    found = YAML(typ="safe").load(dedent(block.text))
    if (
        block.page.parent.name == "extend"
        or not isinstance(found, dict)
        or {"experiments", "command"} & set(found)
    ):
        return  # plug-ins that are not installed; or read as it is
    if text := _whole(dedent(block.text), set(found)):
        (tmp_path / "recipe.yaml").write_text(text)
        assert read_recipe(tmp_path / "recipe.yaml").experiments


_SETTINGS = {
    "hosts": read_inventory, "im": IM.read_file, "kubernetes": KUBERNETES.read_file,
    "openstack": OPENSTACK.read_file, "ray": RAY.read_file, "slurm": SLURM.read_file,
}  # fmt: skip


@pytest.mark.parametrize(
    "block", [each for each in blocks("yaml") if each.page.stem in _SETTINGS], ids=lambda block: block.where
)
def test_settings_of_places_are_read_without_mistakes(block, tmp_path, monkeypatch):
    """Of pages that are called as their place; not what is a recipe, or of another program."""
    found = set(YAML(typ="safe").load(block.text))
    if found & {"experiments", "provider", "command", "apiVersion"} or found == {"clouds"}:
        return
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/id_ed25519").touch(0o600)
    (tmp_path / "settings.yaml").write_text(block.text)
    assert _SETTINGS[block.page.stem](tmp_path / "settings.yaml")


def _parse(line):
    words = shlex.split(line, comments=True)
    end = next((at for at, word in enumerate(words) if word in ("&&", "|", "<", ">", "&")), None)
    words = words[:end]
    options = words[: words.index("--")] if "--" in words else words
    command = whole_command()
    while hasattr(command, "commands"):
        if words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        elif command.invoke_without_command and command.name:  # `server --port 1`, beside `server key`
            break
        else:  # `models RUN` is `models list RUN`
            assert "list" in command.commands, f"{line}: there is no such verb"
            command = command.commands["list"]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0] for word in options if re.match(r"--?[a-z]", word)}
    assert asked <= known, f"{line}: {command.name} has no option {', '.join(asked - known)}"
    if "--help" in words or "..." in words:
        return
    given, left, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    lacking = [each.name for each in command.params if each.required and given.get(each.name) in (None, ())]
    assert lacking == [], f"{line}: {command.name} wants {', '.join(map(str, lacking))}"
    assert left == [] or hasattr(command, "commands"), f"{line}: {command.name} does not want {left}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_cells_of_tables_are_short(page):
    """Tables are for looking things up."""
    rows = [line for line in prose(page).splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    assert [cell[:60] for cell in cells if len(cell) > CELL_MOST] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_text_after_a_table_or_a_list_is_apart(page):
    """Without an empty line it would be a row of the table, or go on in the last item."""
    stuck = re.findall(r"^(?:\||[-*] |\d+\. ).*\n(?![-*] |[|\s<]|\d+\. )(.{1,60})", prose(page), re.MULTILINE)
    assert stuck == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_have_a_head(page):
    """Else the site shows their rows as text."""
    before, *lines = ["", *prose(page).splitlines(), ""]
    for line, after in itertools.pairwise(lines):
        if line.startswith("|") and not before.startswith("|"):
            assert not before, f"{line[:60]}: put an empty line before it"
            assert re.fullmatch(r"\|[ :|-]+\|", after), line[:60]
        before = line


@pytest.fixture(scope="module")
def in_tree():
    """Each file and folder of the tree by every end of its path: ``cluster/record.py``, ``record.py``."""
    found = set()
    for folder in ("src", "tests", "scripts", "benchmarks", "docs", "examples"):
        for path in (ROOT / folder, *(ROOT / folder).rglob("*")):
            parts = path.relative_to(ROOT).parts
            end = "/" if path.is_dir() else ""
            found |= {"/".join(parts[at:]) + end for at in range(len(parts))}
    return found


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_are_there(page, in_tree):
    diagrams = "\n".join(block.text for block in _blocks(page) if block.language == "mermaid")
    named = {word for word in _CODE.findall(prose(page)) if _PATH.fullmatch(word)}
    named |= set(_PATH.findall(diagrams))
    assert sorted(named - in_tree) == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_first_what_it_is_for_and_is_short(page):
    title, first, *_ = (line for line in page.read_text().splitlines() if line)
    assert title.startswith("# ")
    assert not first.startswith(("#", "|", "![")), "begin with what the page is for, or the shortest example"
    if str(page.relative_to(DOCS)) not in REFERENCE and page.parent.name != "development":
        assert len(page.read_text().split()) <= WORDS_MOST, "put a part of it on a page of its own"


def test_architecture_can_be_read_in_one_go():
    assert len((DOCS / "architecture.md").read_text().splitlines()) <= 250


def test_each_package_is_one_row_of_the_house():
    text = (DOCS / "architecture.md").read_text()
    house = text.split("## The house")[1].split("## Where a change belongs")[0]
    rows = re.findall(r"^\| `(\w+)/` \|", house, re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "src/trainmaster").glob("*/__init__.py")}
    assert sorted(rows) == sorted(packages - {"inference", "library"}), "these two belong to no floor"


def test_architecture_says_where_to_begin():
    """A noun's folder, and the file to open first."""
    text = (DOCS / "architecture.md").read_text()
    nouns = re.findall(r"^\| [^|`]+ \| `[\w/]+/` \| [^|]+ \|$", text, re.MULTILINE)
    wanted = text.split("| I want |")[1].split("## Rules")[0].count("\n| ")
    assert len(nouns) >= 20
    assert wanted >= 45


def test_every_folder_is_in_the_house():
    """By its path anywhere on the page, or by its name in the row of its package."""
    text = (DOCS / "architecture.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", text, re.MULTILINE))
    folders = [path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/**/__init__.py")]
    missing = [
        str(folder)
        for folder in folders
        if f"{folder}/" not in text and f"`{folder.name}/`" not in rows.get(folder.parts[0], "")
    ]
    assert [folder for folder in missing if not folder.startswith("library/")] == [], (
        "these are of the user's"
    )


def test_a_change_begins_in_one_file():
    table = (DOCS / "architecture.md").read_text().split("| I want |")[1].split("## Rules")[0]
    rows = [row for row in table.splitlines()[2:] if row and not re.fullmatch(r"\| \*\*.+\*\* \| \| \|", row)]
    firsts = [row.split(" | ")[1] for row in rows]
    assert [first for first in firsts if not re.fullmatch(r"`[\w/]+\.(?:py|js|css)`", first)] == []


def test_every_end_has_an_answer():
    found = anchors(DOCS / "end-reasons.md")
    assert [reason for reason in EndReason if reason.lower() not in found] == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if not re.search(rf" {re.escape(page)}$", text, re.MULTILINE)] == []


@pytest.mark.parametrize("section", ["How do I ...?", "Extending"])
def test_how_to_pages_are_named_as_questions(section):
    inside = (ROOT / "mkdocs.yml").read_text().split(f"  - {section}:\n")[1]
    pages = re.findall(r"- (\S+\.md)$", re.split(r"^  - ", inside, flags=re.MULTILINE)[0], re.MULTILINE)
    titles = [(DOCS / page).read_text().partition("\n")[0] for page in pages]
    assert titles
    assert [title for title in titles if not title.endswith("?")] == []


@pytest.mark.parametrize("page", ["cli.md", "verbs.md", "keys.md"])
def test_verbs_options_and_keys_are_those_of_the_code(page):
    made = runpy.run_path(str(ROOT / "scripts/reference_pages.py"))["pages"]()
    assert (DOCS / page).read_text() == made[page], "python scripts/reference_pages.py writes it"


def test_files_are_found_by_their_words():
    find = runpy.run_path(str(ROOT / "scripts/modules.py"))["modules"]
    assert "spec/units.py" in [line.partition(":")[0] for line in find(["UNIT"])], "by its path"
    assert [line.partition(":")[0] for line in find(["OwnPlacement"])] == ["executors/gangs/placement.py"]
    assert list(find(["unit", "no-such-word"])) == []


def test_every_variable_is_explained():
    """What the code reads or sets stands on a page, but for what processes of ours tell each other."""
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py") if "testing" not in path.parts)
    named = set(re.findall(r"\bTRAINMASTER(?:_[A-Z]+)+\b(?!_)", source))
    pages = (DOCS / "variables.md").read_text() + (DOCS / "tasks.md").read_text()
    told = set(re.findall(r"\bTRAINMASTER(?:_[A-Z]+)+\b", pages))
    ends = tuple(re.findall(r"`(_[A-Z_]+)`", pages))  # `TRAINMASTER_AWS_IMAGE`, `_USER`
    assert [name for name in sorted(named - told - OURS) if not name.endswith(ends)] == []
    assert sorted(OURS - named) == [], "the code has these no longer"


@pytest.mark.parametrize(
    ("page", "head", "noun"),
    [
        ("recipe.md", "## For the whole recipe", Recipe),
        ("recipe.md", "## For an experiment", Experiment),
        ("recipe.md", "## Search", Search),
        ("recipe.md", "## Gates", Requirement),
        ("serving.md", "## Keys", Serve),
    ],
)
def test_tables_of_keys_have_all_that_a_recipe_takes(page, head, noun):
    table = (DOCS / page).read_text().partition(f"{head}\n")[2].partition("\n| key ")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table.partition("---|\n")[2], re.MULTILINE)
    shown = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    known = {key.name for _, key in keys_of(noun)} | {name for name, _ in noun.hoisted}
    assert shown == known


def test_questions_of_newcomers_are_two_clicks_away():
    """The table of `questions.md`: where an answer is, by links from the first page on."""

    def leads_to(page: Path) -> set[Path]:
        found = (a for a, _ in _LINK.findall(prose(page)) if a and not re.match(r"[a-z]+:|#", a))
        return {(page.parent / target.partition("#")[0]).resolve() for target in found}

    first = DOCS / "index.md"
    near = leads_to(first)
    near |= {page for each in near if each.suffix == ".md" for page in leads_to(each)}
    table = Path(__file__).with_name("questions.md")
    assert leads_to(table) - near == {first}
    assert prose(table).count("? |") == 40


def test_each_rule_and_each_fault_of_pages_has_tests_that_are_there():
    rows = re.findall(
        r"^\| ([RB]\d+[a-i]?) \|.*\| (.*) \|$", (DOCS / "development/page-promises.md").read_text(), re.M
    )
    parts = {5: ("", "b", "c"), 10: ("", "a"), 32: "abcdefghi"}
    faults = {f"B{number}{part}" for number in range(1, 48) for part in parts.get(number, ("",))}
    assert {name for name, _ in rows} == {f"R{number}" for number in range(1, 21)} | faults
    there = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert {name for _, tests in rows for name in re.findall("`(\\w+)`", tests)} - there == set()
    assert all("`test_" in tests for _, tests in rows)
