"""What a host needs to become a node, and whether it can have it. Pure: facts in, steps or a reason out."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from trainmaster.cluster.bootstrap.facts import HostFacts, PythonFacts
from trainmaster.cluster.bootstrap.runtime_package import RuntimeLayer, RuntimePackage
from trainmaster.dataclass import dataclass

#: Trainmaster runs on this and newer ones.
OLDEST_PYTHON: Final = (3, 11)
#: Must stay free: a full disk hurts more than our node.
SPARE_DISK_BYTES: Final = 256 << 20
#: Bytecode and half-filled blocks come on top of the files.
_DISK_SHARE: Final = 1.3
#: More than that, and times in logs and leases are hard to compare.
SKEW_NOTE_S: Final = 5.0
_NAME_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class UnfitHost:
    """A host that cannot become a node.

    Attributes:
        reason: what is wrong. hint: what to do about it.
    """

    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapStep:
    """A layer that a host is to have.

    Attributes:
        layer: what is sent; None if pip gets it there.
        order: for `host_programs/install.py`, without what concerns patience. ``tops`` in it are files and
            directories of this machine that the host may see as well, with all of the layer in them.
        present: whether the host says that it has it.
    """

    layer: RuntimeLayer | None
    order: dict[str, Any]
    present: bool


@dataclass(frozen=True, slots=True)
class BootstrapPlan:
    """How a host becomes a node.

    Attributes:
        host_python: the interpreter that everything stands on.
        packages, runtime, code: the layers; no code if none is wanted.
        python: of the runtime, once it is there.
        code_directory: where the user's files are then; empty without.
        device: ``gpu`` or ``cpu``: which packages suit the host.
        notes: what is worth knowing.
    """

    host_python: PythonFacts
    packages: BootstrapStep
    runtime: BootstrapStep
    code: BootstrapStep | None
    python: str
    code_directory: str
    device: str
    notes: tuple[str, ...]


def needs_internet(facts: HostFacts, package: RuntimePackage) -> bool:
    """Whether it matters if the host reaches a package index: our libraries do not fit its Python."""
    chosen = choose_python(facts, package)
    return isinstance(chosen, PythonFacts) and chosen.soabi != package.soabi


def choose_python(facts: HostFacts, package: RuntimePackage) -> PythonFacts | UnfitHost:
    """The Python to stand on: one that our libraries were built for, else the first that is new enough."""
    wanted = ".".join(map(str, package.minor))
    usable = [p for p in facts.pythons if p.implementation == "cpython" and p.minor >= OLDEST_PYTHON]
    for python in usable:
        if python.soabi == package.soabi:
            return python
    if usable:
        return usable[0]
    found = ", ".join(f"{p.implementation} {p.version}" for p in facts.pythons)
    return UnfitHost(
        f"it has {f'only {found}' if found else 'no Python'}; Python {wanted} is needed"
        + (f" (or another one from {'.'.join(map(str, OLDEST_PYTHON))} on, and internet)"),
        f"Install python{wanted} there, or give its path as `python` in the inventory.",
    )


def make_plan(
    facts: HostFacts, package: RuntimePackage, code: RuntimeLayer | None = None
) -> BootstrapPlan | UnfitHost:
    """Decide what a host is to be sent.

    Args:
        facts: what it is, and what it has.
        package: our runtime for such a host.
        code: the user's files.
    """
    if not facts.writable:
        return UnfitHost(
            f"{facts.user} cannot write to {facts.root}", "Give another `directory` in the inventory."
        )
    python = choose_python(facts, package)
    if isinstance(python, UnfitHost):
        return python
    by_pip = python.soabi != package.soabi
    if by_pip and not facts.internet:
        return UnfitHost(
            f"our libraries are built for {package.soabi}, its Python {python.version} is {python.soabi}, "
            "and it reaches no package index",
            f"Install python{'.'.join(map(str, package.minor))} there, or set PIP_INDEX_URL for its logins.",
        )
    packages = _packages(facts, package, python, by_pip=by_pip)
    runtime = _runtime(facts, package, python, packages)
    code_step = _step(facts, code, {"inside": "tree"}) if code else None
    missing = [step for step in (packages, runtime, code_step) if step and not step.present]
    # What pip gets is of about this size, and lies there twice for a while.
    unknown = 4 * package.packages.size_bytes
    needed = int(_DISK_SHARE * sum(step.layer.size_bytes if step.layer else unknown for step in missing))
    if missing and facts.disk_bytes < needed + SPARE_DISK_BYTES:
        return UnfitHost(
            f"{_mb(facts.disk_bytes)} are free for {facts.root}, {_mb(needed + SPARE_DISK_BYTES)} are needed",
            "Make room there, or give another `directory` in the inventory.",
        )
    return BootstrapPlan(
        host_python=python,
        packages=packages,
        runtime=runtime,
        code=code_step,
        python=f"{facts.root}/{runtime.order['kind']}/{runtime.order['name']}/bin/python",
        code_directory=f"{facts.root}/code/{code.name}/tree" if code else "",
        device="gpu" if facts.gpus else "cpu",
        notes=_notes(facts),
    )


def _packages(
    facts: HostFacts, package: RuntimePackage, python: PythonFacts, *, by_pip: bool
) -> BootstrapStep:
    if not by_pip:
        same = {"tops": package.packages.tops()} if facts.shared else {}
        return _step(facts, package.packages, {"inside": "site-packages", **same})
    digest = hashlib.sha256("\n".join((python.soabi, *package.pins)).encode()).hexdigest()[:_NAME_CHARACTERS]
    order = {"kind": "packages", "name": digest, "inside": "site-packages", "pip": list(package.pins)}
    return BootstrapStep(None, order, f"packages/{digest}" in facts.have)


def _runtime(
    facts: HostFacts, package: RuntimePackage, python: PythonFacts, packages: BootstrapStep
) -> BootstrapStep:
    """A venv that shares the libraries with those of other versions of Trainmaster.

    It is written by hand, as Debian's Python has no `venv` unless one asks for it. Nothing in it is an
    absolute path but that of the host's interpreter, so it may be renamed.
    """
    site = f"lib/python{'.'.join(map(str, python.minor))}/site-packages"
    up = "/".join([".."] * (site.count("/") + 3))  # from there to the root
    salt = f"{package.source.name}\n{packages.order['name']}\n{python.path}\n{python.version}"
    name = hashlib.sha256(salt.encode()).hexdigest()[:_NAME_CHARACTERS]
    home = python.path.rpartition("/")[0] or "/"
    cfg = f"home = {home}\ninclude-system-site-packages = false\nversion = {python.version}\n"
    order = {
        "kind": "runtimes",
        "name": name,
        "inside": site,
        "members": package.source.members,
        "files": {"pyvenv.cfg": cfg, f"{site}/trainmaster-packages.pth": _pth(up, packages)},
        "links": {"bin/python": python.path, "bin/python3": "python"},
    }
    return BootstrapStep(package.source, order, f"runtimes/{name}" in facts.have)


def _pth(up: str, packages: BootstrapStep) -> str:
    """Where the libraries are, and what is run whenever the runtime's Python starts.

    To import a large package takes a fifth longer if the garbage collector looks after each 700 new objects.
    """
    return f"{up}/packages/{packages.order['name']}/site-packages\nimport gc; gc.set_threshold(10000)\n"


def _step(facts: HostFacts, layer: RuntimeLayer, order: dict[str, Any]) -> BootstrapStep:
    order = {"kind": layer.kind, "name": layer.name, "members": layer.members, **order}
    return BootstrapStep(layer, order, layer.key in facts.have)


def _notes(facts: HostFacts) -> tuple[str, ...]:
    notes = []
    if abs(facts.clock_skew_s) > SKEW_NOTE_S:
        side = "ahead of" if facts.clock_skew_s > 0 else "behind"
        notes.append(f"its clock is {abs(facts.clock_skew_s):.0f} s {side} ours; use NTP")
    return tuple(notes)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
