"""`HostsProvider`: the user's own machines. Nothing is rented; hosts are claimed, and given back."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.providers.base import NoCapacityError, Node, NodeRequest, NodeState
from trainmaster.providers.examining import Finding, clock_finding, refused
from trainmaster.providers.host_claims import (
    Claim,
    Claims,
    HostShell,
    drop_script,
    fit,
    misfit,
    parse,
    put_script,
    read_script,
)
from trainmaster.providers.host_ledger import HostLedger, as_host
from trainmaster.providers.host_probe import MOST_PROBED, SCRATCH, probe_findings, probed
from trainmaster.providers.inventory import Inventory, InventoryHost
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError, one_line
from trainmaster.spec.processes import this_user
from trainmaster.spec.units import counted, format_mbps
from trainmaster.transport.base import Result

#: A host that others claim all the time is left to them.
_TRIES: Final = 8
_MOST_REASONS: Final = 5
#: A network is between two at least; who asks for a quote waits so long for hosts that do not meet.
_TWO: Final = 2
_PATIENCE_S: Final = 3.0
#: Hosts that did not answer, or were in use, are not waited for by each quote.
_ASKS_AGAIN_S: Final = 120.0
#: Label of a node: which of its GPUs are its own.
GPU_LABEL: Final = "gpu_indices"
_APART: Final = "Let hosts reach each other on all ports; `private_address` says by which address."


@dataclass(frozen=True, slots=True)
class _ProbedHost:
    """A host and what it says, or why it says nothing."""

    host: InventoryHost
    claims: Claims | None
    error: TrainmasterError | None


class HostsProvider:
    """Lends the hosts of an inventory; see `Provider` for the methods.

    What is lent is written on the hosts (`Claim`), and what this home has borrowed in a file per cluster
    here, so that a host that does not answer is still known to be a node. A lease that is not renewed
    ends by the clock of the host.

    Args:
        inventory: the machines.
        shell: runs scripts on them.
        directory: where this home remembers its clusters.
        owner: names this home among all that use the hosts.

    Attributes:
        name: ``hosts``.
    """

    name = "hosts"

    def __init__(self, inventory: Inventory, shell: HostShell, directory: Path, owner: str) -> None:
        self._inventory = inventory
        self._shell = shell
        self._memory = HostLedger(directory)
        self._one_at_a_time = threading.Lock()  # roles are asked for side by side, and remembered together
        self._owner = owner

    def check_settings(self) -> None:
        """Nothing is left to check: the inventory has been read."""

    def check_up(self) -> None:
        """Hosts are asked one by one, in `preflight`: some may be away."""

    def close(self) -> None:
        """Hang up on all hosts; what is claimed there stays so."""
        self._shell.close()

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """Refuse what the inventory cannot give, and hosts that refuse logins; see `Provider.preflight`."""
        notes = []
        free, left_out = [], []
        memory: dict[str, int] = {}
        for one in self._look(self._inventory.hosts):
            if one.claims is not None:
                free.append(one.host)
                memory[one.host.name] = one.claims.memory_bytes
            else:
                left_out.append(one)
                notes.append(f"{one.host.name} is left out: {_words(one.error)}")
        for request in requests:
            if request.count < 1:
                raise UsageError(f"{request.count} {request.role} nodes", "Ask for at least one.")
            free.sort(key=lambda host: _size(host, memory[host.name]))
            suited = [host for host in free if not misfit(host, request, memory[host.name])]
            if len(suited) < request.needed:
                raise self._too_few(request, suited, free, left_out, memory)
            if len(suited) < request.count:
                notes += [
                    f"{host.name} is left out: {misfit(host, request, memory[host.name])}"
                    for host in free
                    if not misfit(host, request) and host not in suited
                ]
            for host in suited[: request.count]:  # one host is one node of a cluster
                free.remove(host)
            wishes = {
                "instance type": request.instance_type,
                "place": request.zone or request.region,
                "spot": "yes" if request.spot else "",
            }
            made = [f"{wish}: {value}" for wish, value in wishes.items() if value]
            if made:
                notes.append(
                    f"{request.role}: hosts of one's own are as they are, not as asked ({', '.join(made)})"
                )
        return notes

    def learn(self, *, network: bool) -> None:
        """See `Learns`: hosts are asked if none has ever answered, and once what they get from each other.

        Those that others use are left alone. Where it could not be measured, `examine` tries again; what
        did not answer is left for a while.
        """
        names = {host.name for host in self._inventory.hosts}
        is_told = len(self._memory.mbps(measured=False).keys() & names) >= _TWO or len(names) < _TWO
        if self._memory.cores().keys() & names and (is_told or not network):
            return
        asked, now = self._memory.asked(), time.time()
        wanted = [f"{name} network" if network and not is_told else name for name in sorted(names)]
        if all(0 <= now - asked.get(each, 0.0) < _ASKS_AGAIN_S for each in wanted):
            return
        self._memory.note_asked(wanted, now)
        seen = self._look(self._inventory.hosts)
        unused = [one.host for one in seen if one.claims and not one.claims.live][:MOST_PROBED]
        if network and not is_told and len(unused) >= _TWO:
            _, rates = probed(self._shell, unused, sorted(names), {}, "", _PATIENCE_S)
            self._memory.learn_mbps(rates)

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`: each host, and whether they reach each other on a port that nothing has opened.

        What those that nothing uses get from each other is measured: quotes go by it.
        """
        found = list[Finding]()
        there, unused = list[InventoryHost](), list[str]()
        for one in self._look(self._inventory.hosts):
            if one.claims is None:
                found.append(refused(one.host.name, one.error or ProviderError("no answer", "")))
                continue
            there.append(one.host)
            clusters = len(one.claims.live)
            unused += [one.host.name] * (not clusters)
            memory = f"{one.claims.memory_bytes / 1e9:.3g} GB"
            use = f", used by {counted(clusters, 'cluster')}" if clusters else ", free"
            found.append(Finding(one.host.name, f"answers: {memory}{use}"))
            found.append(clock_finding(one.claims.now - time.time(), one.host.name))
        if not there:
            return found
        answers, rates = probed(self._shell, there[:MOST_PROBED], unused, builds, SCRATCH)
        self._memory.learn_mbps(rates)
        for name, answer in answers.items():
            found += probe_findings(name, list(answers), answer, builds, _APART)
        if least := min(filter(None, rates.values()), default=0.0):
            words = f"{len(rates)} hosts at once get {format_mbps(least)} or more from each other"
            found.append(Finding("network", words))
        return found

    def queue_wait_s(self, requests: Sequence[NodeRequest]) -> float | None:
        """See `Queue`: none if there is room now; else nothing says how long others go on.

        Raises:
            NoCapacityError: which hosts are in use.
        """
        self.free_nodes(requests)
        return 0.0

    def free_nodes(self, requests: Sequence[NodeRequest]) -> list[int]:
        """See `CountsFree`."""
        free, counts = self._look(self._inventory.hosts), list[int]()
        for request in requests:
            draft, reasons, found = self._draft("-", request), list[str](), list[_ProbedHost]()
            for one in free:
                fits = _words(one.error) if one.claims is None else fit(one.host, one.claims, request, draft)
                if isinstance(fits, str):
                    reasons.append(_named(one.host.name, fits))
                else:
                    found.append(one)
            if len(found) < request.needed:
                words = f"{_needed(request.needed, len(found))} free"
                raise NoCapacityError(
                    f"{words}: {'; '.join(reasons)}",
                    "Wait until others have ended.",
                    lacking=request.needed - len(found),
                )
            free = [one for one in free if one not in found[: request.count]]
            counts.append(min(len(found), request.count))
        return counts

    def _too_few(
        self,
        request: NodeRequest,
        suited: Sequence[InventoryHost],
        free: Sequence[InventoryHost],
        left_out: Sequence[_ProbedHost],
        memory: Mapping[str, int],
    ) -> TrainmasterError:
        could = [one for one in left_out if not misfit(one.host, request)]
        reasons = [_named(one.host.name, _words(one.error)) for one in could]
        reasons += [
            f"{host.name}: {reason}" for host in free if (reason := misfit(host, request, memory[host.name]))
        ]
        needed = counted(request.needed, f"{request.role} node")
        message = f"{self._inventory.file}: {counted(len(suited), 'host')} for {needed}" + (
            f" ({'; '.join(reasons[:_MOST_REASONS])})" if reasons else ""
        )
        hint = "List more hosts there, or ask for fewer nodes."
        if any(misfit(host, request, memory[host.name]) for host in free):
            hint = f"{_most(free, memory)} List more hosts there, or ask for less."
        if len(suited) + len(could) < request.needed:
            return UsageError(message, hint)
        refused = next((one.error for one in could if isinstance(one.error, UsageError)), None)
        return (
            UsageError(message, refused.hint or hint) if refused else ProviderError(message, "Are they on?")
        )

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """The claims that `acquire` would write; which hosts get them depends on what uses them then."""
        return [
            {
                "operation": "claim",
                "host": "${host.Name}",
                "cluster": cluster,
                "role": request.role,
                "token": request.token or request.role,
                "slots": request.slots,
                "labels": dict(request.labels),
            }
            for request in requests
            for _ in range(request.count)
        ]

    def acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        """Claim hosts, the least used first; see `Provider.acquire`."""
        with self._one_at_a_time:
            return self._acquire(cluster, request)

    def _acquire(self, cluster: str, request: NodeRequest) -> list[Node]:
        seen = self._look(self._inventory.hosts)
        draft = self._draft(cluster, request)
        remembered = {node.id: node for node in self._memory.recall(cluster)}
        if given_up := {
            one.host.name: [claim]
            for one in seen
            if one.claims
            and one.host.name not in remembered
            and (claim := one.claims.of(self._owner, cluster))
            and claim.token != draft.token
        }:  # hosts that were silent when they were given back: the claim on them is orphaned
            self._drop(given_up)
            seen = self._look(self._inventory.hosts)
        nodes = self._known_by_token(draft, seen, remembered)
        taken = {one.host.name for one in seen if one.claims and one.claims.of(self._owner, cluster)}
        free = [one for one in seen if one.host.name not in taken and one.host.name not in nodes]
        fresh: dict[str, Claim] = {}
        reasons: dict[str, str] = {}
        for one in sorted(free, key=_preference):
            if len(nodes) + len(fresh) >= request.count:
                break
            result = self._claim(one, request, draft)
            if isinstance(result, Claim):
                fresh[one.host.name] = result
            else:
                reasons[one.host.name] = result
        if len(nodes) + len(fresh) < request.needed:
            self._drop({name: [claim] for name, claim in fresh.items()})
            raise NoCapacityError(
                f"{_needed(request.needed, len(nodes) + len(fresh))} free for {request.role}"
                + (f" ({'; '.join(_named(name, why) for name, why in reasons.items())})" if reasons else ""),
                "Wait until others have ended, list more hosts, or ask for fewer.",
                zones=[one.host.name for one in free],
            )
        nodes |= {name: self._node(name, claim) for name, claim in fresh.items()}
        self._memory.remember(cluster, (remembered | nodes).values(), dict.fromkeys(nodes, draft.token))
        left_out = [self._left_out(draft, name, why) for name, why in reasons.items()]
        missing = max(request.count - len(nodes), 0)
        return [*list(nodes.values())[: request.count], *left_out[:missing]]

    def _left_out(self, draft: Claim, name: str, why: str) -> Node:
        return Node(
            id=name,
            cluster=draft.cluster,
            role=draft.role,
            state=NodeState.GONE,
            reason=_named(name, why),
            is_rented=False,
        )

    def _known_by_token(
        self, draft: Claim, seen: Sequence[_ProbedHost], remembered: Mapping[str, Node]
    ) -> dict[str, Node]:
        """What the same request was given before; also a host that does not answer just now."""
        tokens = self._memory.tokens(draft.cluster)
        found = {}
        for one in seen:
            name = one.host.name
            if one.claims is not None:
                claim = one.claims.of(self._owner, draft.cluster)
                if claim is not None and claim.token == draft.token:
                    found[name] = self._node(name, claim)
            elif name in remembered and tokens.get(name) == draft.token:
                found[name] = remembered[name]
        return found

    def nodes(self, cluster: str) -> list[Node]:
        """The hosts of a cluster; see `Provider.nodes`.

        A host that does not answer is READY, with the reason: whether it is lost is not for us to say.
        """
        remembered = {node.id: node for node in self._memory.recall(cluster)}
        found = []
        for one in self._look(self._hosts(remembered)):
            name, known = one.host.name, remembered.get(one.host.name)
            if one.claims is None:
                if known is not None:
                    found.append(
                        replace(known, state=NodeState.READY, reason=f"does not answer: {_words(one.error)}")
                    )
            elif claim := one.claims.of(self._owner, cluster):
                found.append(self._node(name, claim, one.host))
            elif known is not None:
                lapsed = "its claim is not on the host any more: the lease ran out"
                found.append(replace(known, state=NodeState.GONE, reason=lapsed))
        return found

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`: it is not kept."""
        return ""

    def renew(self, cluster: str, lease_s: float) -> None:
        """Let the claims count for so long from now on; see `Provider.renew`."""
        errors: list[TrainmasterError] = []
        renewed = 0

        def prolonged(claims: Claims) -> Claim | None:
            claim = claims.of(self._owner, cluster)
            return claim and replace(claim, until=claims.end_of(lease_s))

        for one in self._look(self._hosts({node.id: node for node in self._memory.recall(cluster)})):
            if one.error is not None:
                errors.append(one.error)
                continue
            try:
                renewed += self._rewritten(one, prolonged) is not None
            except TrainmasterError as error:
                errors.append(error)
        if errors and not renewed:
            raise errors[0]

    def release(self, cluster: str, ids: Sequence[str] | None = None) -> None:
        """Take the claims away; one on a host that does not answer runs out. See `Provider.release`."""
        with self._one_at_a_time:
            self._release(cluster, ids)

    def _release(self, cluster: str, ids: Sequence[str] | None) -> None:
        remembered = {node.id: node for node in self._memory.recall(cluster)}
        wanted = [host for host in self._hosts(remembered) if ids is None or host.name in ids]
        if ids is None:  # also one that was silent when it was given back, and may be there again
            before = self._memory.tokens(cluster).keys() - {host.name for host in wanted}
            wanted += [host for host in self._inventory.hosts if host.name in before]
        claims = {
            one.host.name: [
                claim for claim in one.claims.own if (claim.owner, claim.cluster) == (self._owner, cluster)
            ]
            for one in self._look(wanted)
            if one.claims
        }
        self._drop({name: listed for name, listed in claims.items() if listed}, wanted)
        names = {host.name for host in wanted}
        self._memory.remember(cluster, [node for node in remembered.values() if node.id not in names])

    def reap(self, known: Sequence[str]) -> list[str]:
        """Take away what this home has claimed for unknown clusters; see `Provider.reap`.

        A claim that has not run out stays, by its host's clock.
        """
        lost: dict[str, list[Claim]] = {}
        held: set[str] = set()
        clusters = self._memory.clusters()
        remembered = {node.id: node for name in clusters for node in self._memory.recall(name)}
        hosts = {host.name: host for host in (*self._hosts(remembered), *self._inventory.hosts)}
        for one in self._look(list(hosts.values())):
            if one.claims is None:
                continue
            for claim in one.claims.own:
                if claim.owner != self._owner or claim.cluster in known:
                    continue
                if claim.until > one.claims.now:
                    held.add(claim.cluster)
                else:
                    lost.setdefault(one.host.name, []).append(claim)
        self._drop(lost, list(hosts.values()))
        for name in clusters:
            if name not in known and name not in held:
                self._memory.remember(name, [])
        return list(lost)

    def _look(self, hosts: Sequence[InventoryHost]) -> list[_ProbedHost]:
        answers = self._shell.run_all(hosts, read_script()) if hosts else []
        found = [self._seen(host, answer) for host, answer in zip(hosts, answers, strict=True)]
        told = {one.host.name: one.claims for one in found if one.claims}
        self._memory.learn_sizes(
            {name: each.memory_bytes for name, each in told.items()},
            {name: each.cores for name, each in told.items()},
        )
        return found

    def _seen(self, host: InventoryHost, answer: Result | TrainmasterError) -> _ProbedHost:
        if isinstance(answer, TrainmasterError):
            return _ProbedHost(host, None, answer)
        try:
            return _ProbedHost(host, parse(answer, host.name), None)
        except ProviderError as error:
            return _ProbedHost(host, None, error)

    def _claim(self, one: _ProbedHost, request: NodeRequest, draft: Claim) -> Claim | str:
        """Claim a host for a request; the claim, or why not."""
        said: list[str] = []

        def wish(claims: Claims) -> Claim | None:
            result = fit(one.host, claims, request, draft)
            if isinstance(result, str):
                said.append(result)
                return None
            return result

        try:
            claims = self._rewritten(one, wish)
        except TrainmasterError as error:
            return one_line(error)
        found = claims.of(self._owner, draft.cluster) if claims else None
        return found or (said[-1] if said else "others claim it all the time")

    def _rewritten(self, one: _ProbedHost, wish: Callable[[Claims], Claim | None]) -> Claims | None:
        """Write the claim that is wished for in view of the others; again if they changed meanwhile."""
        claims = one.claims
        for _ in range(_TRIES):
            if claims is None:
                break
            claim = wish(claims)
            if claim is None:
                return None
            if claim in claims.own:
                return claims
            one = self._seen(one.host, self._shell.run_all([one.host], put_script(claim, claims.version))[0])
            claims = one.claims
            if claims and claim in claims.own:
                return claims
        if one.error:
            raise one.error
        return None

    def _drop(
        self, claims: Mapping[str, Sequence[Claim]], hosts: Sequence[InventoryHost] | None = None
    ) -> None:
        known = {host.name: host for host in hosts or self._inventory.hosts}
        for name, listed in claims.items():
            self._shell.run_all([known[name]], drop_script(listed))

    def _draft(self, cluster: str, request: NodeRequest) -> Claim:
        return Claim(
            cluster=cluster,
            owner=self._owner,
            user=this_user(),
            role=request.role,
            token=request.token or request.role,
            slots=0,
            gpus=(),
            until=0.0,
            labels=tuple(request.labels.items()),
        )

    def _node(self, name: str, claim: Claim, host: InventoryHost | None = None) -> Node:
        host = self._inventory.find(name) or host
        assert host is not None
        gpus = {GPU_LABEL: ",".join(map(str, claim.gpus))} if claim.gpus else {}
        return Node(
            id=name,
            cluster=claim.cluster,
            role=claim.role,
            state=NodeState.READY,
            address=host.address,
            private_address=host.private_address or host.address,
            port=host.port,
            user=host.user or this_user(),
            key=host.key,
            host_key=host.host_key,
            jump=host.jump,
            python=host.python,
            directory=host.directory,
            slots=claim.slots or host.slots,
            gpus=len(claim.gpus),
            labels={**host.labels, **dict(claim.labels), **gpus},
            is_rented=False,
        )

    def _hosts(self, remembered: Mapping[str, Node]) -> list[InventoryHost]:
        """Where the claims of a cluster may be: where we know it is, else anywhere."""
        if not remembered:
            return list(self._inventory.hosts)
        return [self._inventory.find(node.id) or as_host(node) for node in remembered.values()]


def _size(host: InventoryHost, memory_bytes: int) -> tuple[float, ...]:
    """The larger it is, the later it is taken: another role may need what this one would leave unused."""
    return host.gpus, host.slots or math.inf, memory_bytes >> 30


def _preference(one: _ProbedHost) -> tuple[float, ...]:
    """Emptiest first, then the smallest; sorting keeps the order of the inventory among equals."""
    claims = one.claims
    used, memory_bytes = (len(claims.live), claims.memory_bytes) if claims else (0, 0)
    return (used, *_size(one.host, memory_bytes))


def _most(hosts: Sequence[InventoryHost], memory: Mapping[str, int]) -> str:
    """What the largest of some hosts have."""
    slots, gpus = max(host.slots for host in hosts), max(host.gpus for host in hosts)
    gigabytes = max(memory[host.name] for host in hosts) / 1e9
    known = (
        [counted(slots, "slot")] * bool(slots)
        + [counted(gpus, "GPU")]
        + [f"{gigabytes:.3g} GB"] * bool(gigabytes)
    )
    return f"The most that one has: {', '.join(known)}."


def _needed(count: int, there: int) -> str:
    """How many hosts are needed, and how many of these there are.

    >>> _needed(1, 0), _needed(2, 1), _needed(4, 3)
    ('1 host is needed, none is', '2 hosts are needed, 1 is', '4 hosts are needed, 3 are')
    """
    wanted = f"{counted(count, 'host')} {'is' if count == 1 else 'are'} needed"
    return f"{wanted}, {there or 'none'} {'is' if there < 2 else 'are'}"


def _words(error: TrainmasterError | None) -> str:
    """The message without the hint."""
    return Exception.__str__(error) if error else ""


def _named(host: str, reason: str) -> str:
    """A reason with the host that it is about; what comes from a connection says so already."""
    return reason if reason.startswith(host) else f"{host}: {reason}"
