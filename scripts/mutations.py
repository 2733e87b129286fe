"""Change the code in small ways and see whether its tests notice: ``python scripts/mutations.py``.

100 seeded mutations of the modules that decide about money, machines, models and chunks. Each is run with the
unit tests and simulations that belong to its module, in a copy of the source. What no test notices is printed
with its line: a rule that nobody holds. Mutations that change nothing anybody can see are listed in
``EQUIVALENT`` with the reason, and do not count. Exits with 1 if fewer than nine of ten are noticed.

The kinds of mutation are those of Jia and Harman, "An analysis and survey of the development of mutation
testing", IEEE Transactions on Software Engineering 37 (2011): relations, connectives, constants, arithmetic,
conditions, results, and statements that are left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "trainmaster"
#: At least so much of what is not equivalent has to be noticed.
LEAST = 0.9
_TIMEOUT_S = 300.0

_CONTROL = "tests/unit/control"
_CLUSTERS = "tests/unit/cluster"
_DECIDE_CLUSTER = [
    f"{_CLUSTERS}/test_decide_cluster.py",
    f"{_CLUSTERS}/test_cluster_simulation.py",
    f"{_CLUSTERS}/test_cluster_loop.py",
    f"{_CLUSTERS}/test_cluster_leases.py",
]
#: Of runs, by module: its tests, the quick and telling ones first.
_RUNS = {
    "control/decide/task.py": [
        f"{_CONTROL}/test_decide_task.py",
        f"{_CONTROL}/test_decide_saving.py",
        f"{_CONTROL}/test_transition_walk.py",
        f"{_CONTROL}/test_simulation.py",
    ],
    "control/decide/saving.py": [
        f"{_CONTROL}/test_decide_saving.py",
        f"{_CONTROL}/test_decide_task.py",
        f"{_CONTROL}/test_simulation.py",
    ],
    "cluster/decide_cluster.py": _DECIDE_CLUSTER,
    "cluster/decide_requests.py": _DECIDE_CLUSTER,
    "control/decide/budget.py": [
        f"{_CONTROL}/test_budget.py",
        f"{_CONTROL}/test_saving_money.py",
        f"{_CLUSTERS}/test_cluster_executor_budget.py",
        f"{_CONTROL}/test_cap_simulation.py",
    ],
    "db/leases.py": ["tests/unit/db/test_leases.py"],
    "volumes/packed/garbage.py": [
        "tests/unit/volumes/packed/test_garbage.py",
        "tests/unit/volumes/packed/test_gc_schedules.py",
    ],
    "volumes/packed/deletions.py": [
        "tests/unit/volumes/packed/test_garbage.py",
        "tests/unit/volumes/packed/test_hostile_documents.py",
        "tests/unit/volumes/packed/test_gc_schedules.py",
    ],
    "volumes/packed/leases.py": [
        "tests/unit/volumes/packed/test_push_leases.py",
        "tests/unit/volumes/packed/test_garbage.py",
        "tests/unit/volumes/packed/test_gc_schedules.py",
    ],
    "artifacts/publishing.py": [
        "tests/unit/artifacts/test_artifact.py",
        "tests/unit/artifacts/test_checkpoint_series.py",
        "tests/unit/artifacts/test_sending.py",
        f"{_CLUSTERS}/test_node_publishing.py",
    ],
    "artifacts/checkpoints.py": [
        "tests/unit/artifacts/test_checkpoint_series.py",
        "tests/unit/artifacts/test_checkpoint_schedules.py",
    ],
    "advisor/quote/choosing.py": [
        "tests/unit/advisor/test_choosing.py",
        "tests/unit/advisor/test_price_per_hour.py",
        "tests/unit/advisor/test_quoting.py",
        "tests/unit/advisor/test_server_quotes.py",
        "tests/unit/advisor/test_quote_invariants.py",
    ],
}
_ROUTES = "tests/unit/api/rest"
_SERVICE = "tests/unit/service"
_PROXY = ["test_app_headers.py", "test_admissions.py", "test_app_proxy.py", "test_service_proxy.py"]
_NUMBERS = f"{_SERVICE}/test_promised_numbers.py"
_UPLOADS = [_NUMBERS, f"{_ROUTES}/test_upload_routes.py", f"{_SERVICE}/test_uploads_any_order.py"]
#: Of the server: who may what, what that costs, and what outlives a request.
_SERVER = {
    "db/ledger.py": [
        _NUMBERS,
        "tests/unit/db/test_ledger.py",
        f"{_SERVICE}/teams/test_team_budget.py",
        f"{_SERVICE}/teams/test_allowance.py",
        f"{_SERVICE}/teams/test_admission.py",
    ],
    "service/teams/admission.py": [
        _NUMBERS,
        f"{_SERVICE}/teams/test_admission.py",
        f"{_ROUTES}/test_budget_routes.py",
    ],
    "service/users/caller.py": [
        f"{_SERVICE}/users/test_access.py",
        f"{_SERVICE}/users/test_accounts.py",
        f"{_ROUTES}/test_roles.py",
    ],
    "service/users/access.py": [
        _NUMBERS,
        f"{_SERVICE}/users/test_access.py",
        f"{_SERVICE}/users/test_accounts.py",
        f"{_SERVICE}/users/test_clocks.py",
        f"{_ROUTES}/test_roles.py",
    ],
    "service/users/accounts.py": [
        _NUMBERS,
        f"{_SERVICE}/users/test_accounts.py",
        "tests/unit/db/test_account_rows.py",
        f"{_ROUTES}/test_roles.py",
    ],
    **{
        f"api/proxy/{module}.py": [f"tests/unit/api/proxy/{each}" for each in _PROXY]
        for module in ("admissions", "connection", "grants", "headers")
    },
    "db/uploads.py": ["tests/unit/db/test_upload_rows.py", *_UPLOADS],
    "service/uploads/uploads.py": _UPLOADS,
    "service/uploads/upload_finishing.py": _UPLOADS,
    "db/removals.py": ["tests/unit/db/test_retention_rows.py", f"{_SERVICE}/test_retention.py"],
    "service/retention.py": [_NUMBERS, f"{_SERVICE}/test_retention.py"],
    "service/workflows/decisions.py": [_NUMBERS, f"{_SERVICE}/workflows/test_decisions.py"],
    "service/workflows/triggers.py": [_NUMBERS, f"{_ROUTES}/test_workflow_routes.py"],
    "service/notifications/webhook_targets.py": [_NUMBERS, f"{_SERVICE}/notifications/test_webhooks.py"],
    "service/driving/submissions.py": [
        f"{_SERVICE}/driving/test_submissions.py",
        f"{_SERVICE}/test_month_caps.py",
        f"{_ROUTES}/test_routes.py",
        f"{_ROUTES}/test_workflow_routes.py",
    ],
    "api/rest/state.py": [
        f"{_ROUTES}/test_routes.py",
        f"{_ROUTES}/test_tunnels.py",
        f"{_ROUTES}/test_app_pages.py",
        f"{_ROUTES}/test_roles.py",
        f"{_ROUTES}/test_rights_end.py",
        "tests/unit/api/remote/test_workflow_verbs.py",
    ],
}
PARTS = {"runs": _RUNS, "server": _SERVER}
TESTS = _RUNS | _SERVER
_MOMENT = "moves a moment by nothing that anybody can see"
#: Of each module: mutations that change nothing anybody can see, as `Mutation.name` has them, and why.
EQUIVALENT: dict[str, str] = {
    "db/ledger.py: _ADMISSION: Final = 0x7A11_ED6E [20: 0x7A11_ED6E -> 20479952460]": (
        "another number, which nothing else of ours has"
    ),
    "db/ledger.py:reserve_up_to: if most > has: [3: most > has -> most >= has]": "sets the same aside again",
    "db/ledger.py:balances_query: ends = (t.run.c.lease_expires_at > now - _LEASE_S)"
    " & t.run.c.id.in_(_WITH_MACHINES) [8: t.run.c.lease_expires_at > now - _LEASE_S"
    " -> t.run.c.lease_expires_at >= now - _LEASE_S]": _MOMENT,
    "db/ledger.py:balances_query: sa.func.sum(sa.case((of_run.c.held > 0, of_run.c.held), else_=0))"
    '.label("reserved"),'
    " [21: of_run.c.held > 0 -> of_run.c.held >= 0]": "a sum with a zero more",
    "db/uploads.py:unused: is_old = t.upload.c.used_at < since"
    " [9: t.upload.c.used_at < since -> t.upload.c.used_at <= since]": _MOMENT,
    'db/uploads.py:is_finishing: return row["state"] == "FINISHING" and bool(row["claimed_until"] > now)'
    ' [44: row["claimed_until"] > now -> row["claimed_until"] >= now]': _MOMENT,
    "api/proxy/admissions.py:__init__: super().__init__(text) [0: super().__init__(text) -> pass]": (
        "who catches it takes its attributes"
    ),
    'service/users/accounts.py:_check_inviter: maker = Creator(row["invited_by"] or token or "owner",'
    ' row["invited_by"], token, row["team"]) [35: token or "owner" -> token and "owner"]': (
        "a name that no refusal tells"
    ),
    "service/workflows/decisions.py:due_time: if not times and begin > seen:"
    "  # a rare one, such as on each January 1st [17: begin > seen -> begin >= seen]": (
        "looks once more at the same times"
    ),
    "control/decide/budget.py:_affordable_s: if self.bill(now + middle + after_s) <= self.cap_usd:"
    " [3: self.bill(now + middle + after_s) <= self.cap_usd"
    " -> self.bill(now + middle + after_s) < self.cap_usd]": (
        "moves a moment by no more than the half second to which it is looked for"
    ),
    "artifacts/checkpoints.py:_whole: if threads <= 1: [3: threads <= 1 -> threads < 1]": (
        "a pool of one thread instead of none"
    ),
    "advisor/quote/choosing.py:choose: promising = np.lexsort((value, over > 1))[:_FIRST]"
    " if (over <= 1).any() else np.argsort(over)[:_FIRST] [55: over <= 1 -> over < 1]": (
        "only which candidates are drawn first; the pick is that of brute force in any order"
    ),
    'db/leases.py:is_alive: place, pid, start = owner.rsplit(":", 2) if owner.count(":") >= 2'
    ' else ("", "", "") [44: owner.count(":") >= 2 -> owner.count(":") > 2]': (
        "our own names have three colons; what has two was written by an earlier version: by its expiry"
    ),
    "db/leases.py:is_alive: return expires_at is not None and expires_at > now"
    " [34: expires_at > now -> expires_at >= now]": _MOMENT,
    "db/removals.py:remove_older: undriven = t.run.c.lease_owner.is_(None)"
    " | (t.run.c.lease_expires_at < before)"
    " [44: t.run.c.lease_expires_at < before -> t.run.c.lease_expires_at <= before]": _MOMENT,
    "volumes/packed/garbage.py: _DELETED_AT_ONCE = 500 [19: 500 -> 5000]": (
        "fewer requests, of more names each"
    ),
    "volumes/packed/garbage.py:give_up: and self._now_s - detail.modified_s >= self._grace_s"
    " [4: self._now_s - detail.modified_s >= self._grace_s"
    " -> self._now_s - detail.modified_s > self._grace_s]": _MOMENT,
    "volumes/packed/garbage.py:_is_at_rest: return modified_s <= since_s"
    " or self._now_s - modified_s >= self._grace_s"
    " [32: self._now_s - modified_s >= self._grace_s -> self._now_s - modified_s > self._grace_s]": _MOMENT,
    "volumes/packed/garbage.py:_sweep_leases: if not is_list(detail.key)"
    " and self._now_s - detail.modified_s >= max(self._grace_s, DEAD_AFTER_S)"
    " [31: self._now_s - detail.modified_s >= max(self._grace_s, DEAD_AFTER_S)"
    " -> self._now_s - detail.modified_s > max(self._grace_s, DEAD_AFTER_S)]": _MOMENT,
}

_RELATIONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}


@dataclass(frozen=True)
class Mutation:
    """One change: ``old`` between two offsets of a module becomes ``new``."""

    module: str
    start: int
    end: int
    line: int
    old: str
    new: str
    #: The function that it is in, the line that it begins in, and where in that.
    function: str
    text: str
    column: int
    #: Where the same is there more than once in a function.
    number: int = 1

    @property
    def change(self) -> str:
        """Says what it does."""
        return f"{' '.join(self.old.split())} -> {' '.join(self.new.split())}"

    @property
    def name(self) -> str:
        """Says which it is, whatever lines come before it: the same change may be made in many places."""
        place = ":".join(filter(None, (self.module, self.function)))
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{place}: {self.text.strip()} [{self.column}: {self.change}]{again}"


def mutations(module: str, source: str) -> Iterator[Mutation]:
    """All mutations of a module, in the order of its text."""
    offsets = [0]
    lines = source.splitlines(keepends=True)
    for line in lines:
        offsets.append(offsets[-1] + len(line.encode()))
    data = source.encode()

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset

    def mutation(at: ast.expr | ast.stmt, start: int, end: int, old: str, new: str) -> Mutation:
        text = lines[at.lineno - 1]
        column = at.col_offset - (len(text) - len(text.lstrip()))
        return Mutation(module, start, end, at.lineno, old, new, functions.get(at.lineno, ""), text, column)

    def made(node: ast.expr | ast.stmt, new: str) -> Mutation:
        start, end = span(node)
        return mutation(node, start, end, data[start:end].decode(), new)

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutation]:
        start, end = span(left)[1], span(right)[0]
        text = data[start:end].decode()
        at = text.find(f" {old} ")
        if at >= 0:
            begin = start + len(text[: at + 1].encode())
            whole = data[span(left)[0] : span(right)[1]].decode()
            changed = whole[: begin - span(left)[0]] + new + whole[begin - span(left)[0] + len(old) :]
            yield mutation(left, span(left)[0], span(right)[1], whole, changed)

    tree = ast.parse(source)
    functions: dict[int, str] = {}
    for node in ast.walk(tree):  # those inside come later
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            functions.update(dict.fromkeys(range(node.lineno, node.end_lineno + 1), node.name))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list.clear()  # how a class keeps its fields is nothing that is decided
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, ops=ops, comparators=others):
                for one, op, other in zip([left, *others], ops, others, strict=False):
                    yield from between(one, other, *_RELATIONS[type(op)])
            case ast.BoolOp(op=op, values=values):
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                for one, other in pairwise(values):
                    yield from between(one, other, *words)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
                yield from between(left, right, *_ARITHMETIC[type(op)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                start, end = span(operand)
                yield made(node, f"({data[start:end].decode()})")
            case ast.Constant(value=bool() as value):
                yield made(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield made(node, str(value * 10 if value not in (0, 1) else 1 - value))
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass  # nothing of it runs
            case ast.If(test=test) | ast.IfExp(test=test):
                start, end = span(test)
                yield made(test, f"(not ({data[start:end].decode()}))")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield made(value, "None")
            case ast.Expr(value=ast.Call()) | ast.Raise():
                yield made(node, "pass")
            case _:
                pass


def drawn(count: int, seed: int, modules: Collection[str]) -> list[Mutation]:
    """So many mutations of some modules together, by a seed."""
    found: list[Mutation] = []
    for module in modules:
        source = (PACKAGE / module).read_text(encoding="utf-8")
        seen: Counter[str] = Counter()
        for each in sorted(set(mutations(module, source)), key=lambda each: (each.start, each.end, each.new)):
            seen[each.name] += 1
            found.append(replace(each, number=seen[each.name]))
    known = {name for name in EQUIVALENT if name.partition(":")[0] in modules}
    if unknown := known - {each.name for each in found}:
        raise SystemExit(f"there are no such mutations (any more): {', '.join(sorted(unknown))}")
    return sorted(
        random.Random(seed).sample(found, min(count, len(found))), key=lambda each: (each.module, each.start)
    )


class Bench:
    """Copies of the source, one for each test run that goes on at a time."""

    def __init__(self, place: Path, jobs: int) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            copy = place / str(number)
            shutil.copytree(PACKAGE, copy / "trainmaster", ignore=shutil.ignore_patterns("__pycache__"))
            self._free.put(copy)

    def notices(self, mutation: Mutation) -> bool:
        """Whether a test fails with it."""
        copy = self._free.get()
        path = copy / "trainmaster" / mutation.module
        original = path.read_bytes()
        try:
            path.write_bytes(original[: mutation.start] + mutation.new.encode() + original[mutation.end :])
            return not _passes(copy, TESTS[mutation.module])
        finally:
            path.write_bytes(original)
            self._free.put(copy)

    def passes(self, modules: Collection[str]) -> bool:
        """Whether all tests pass as they are."""
        copy = self._free.get()
        try:
            return _passes(copy, sorted({test for module in modules for test in TESTS[module]}))
        finally:
            self._free.put(copy)


def _passes(copy: Path, tests: Sequence[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--reruns=0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:  # it hangs: noticed
        return False
    if done.returncode not in (0, 1, 2):
        raise RuntimeError(done.stdout.decode(errors="replace")[-2000:])
    return done.returncode == 0


def main() -> int:
    """Try mutations; 1 if too few are noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", choices=PARTS, help="of these modules only")
    parser.add_argument("--module", choices=TESTS, help="of this one only")
    options = parser.parse_args()
    modules = [options.module] if options.module else list(PARTS.get(options.part, TESTS))
    chosen = drawn(options.count, options.seed, modules)
    survivors: list[Mutation] = []
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place), options.jobs)
        if not bench.passes(modules):
            print("the tests fail without any mutation", file=sys.stderr)
            return 2
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutation, noticed in zip(chosen, pool.map(bench.notices, chosen), strict=True):
                if not noticed:
                    survivors.append(mutation)
                word = "noticed " if noticed else "SURVIVED"
                print(
                    f"{word} {mutation.module}:{mutation.line}  {mutation.change}",
                    flush=True,
                )
    equivalent = [each for each in survivors if each.name in EQUIVALENT]
    counted = len(chosen) - len(equivalent)
    noticed_count = len(chosen) - len(survivors)
    result = {
        "mutations": len(chosen),
        "noticed": noticed_count,
        "equivalent": len(equivalent),
        "share": round(noticed_count / counted, 3) if counted else 1.0,
        "survivors": [f"line {each.line} of {each.name}" for each in survivors if each not in equivalent],
    }
    print(json.dumps(result, indent=2))
    return 0 if result["share"] >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
