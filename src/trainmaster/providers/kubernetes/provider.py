"""`KubernetesProvider`: machines are pods of one namespace; Kubernetes itself finds nodes for them.

Pods have fixed names: to create one twice is to find it. What is asked for together is had together, or is
deleted together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from trainmaster.providers.base import (
    CLOCKS_DIFFER_S,
    NoCapacityError,
    Node,
    NodeRequest,
    NodeState,
    ProviderPlace,
    planned,
)
from trainmaster.providers.cluster_ledger import AskedMachines, KnownCluster, KnownMachine
from trainmaster.providers.examining import Finding, clock_finding, found_by, room_finding
from trainmaster.providers.kubernetes import answers, kueue, manifests
from trainmaster.providers.kubernetes.answers import Pod
from trainmaster.providers.kubernetes.kueue import QueueGroup
from trainmaster.providers.kubernetes.manifests import amount_of
from trainmaster.providers.kubernetes.settings import KUBERNETES, KubernetesSettings
from trainmaster.providers.ledger_provider import LedgerProvider, ListedMachine, check_requests
from trainmaster.providers.own_settings import shown_variable
from trainmaster.providers.sent_settings import SentSettings
from trainmaster.providers.team_login import LoginKind, check_address
from trainmaster.spec.clocks import steady_s
from trainmaster.spec.errors import ProviderError, TrainmasterError, UsageError
from trainmaster.spec.private_files import short_digest
from trainmaster.spec.states import Overuse
from trainmaster.spec.units import format_duration
from trainmaster.transport.http_calls import Send, gone_is_fine
from trainmaster.transport.kubernetes.api import KubeApi, KubeRefusedError
from trainmaster.transport.kubernetes.login import (
    KubeLogin,
    check_self_contained,
    login_for_pod,
    read_login,
)
from trainmaster.transport.kubernetes.pods import way_of

#: What is known to be over is ended by force so long after it was asked to, seconds.
_RELEASE_S: Final = "1"
#: With `wait: 0s` the scheduler is given so long; and a pod of the same name so long to go.
_AT_ONCE_S: Final = 5.0
_GOING_S: Final = 90.0
_LOOK_S: Final = 0.2
#: What a pod was ended for, in what is known of it.
_OVERUSED: Final = "overused"
#: A user in a pod is known by a number, of which nothing need be known.
_USER: Final = "pod"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_HINT: Final = "Look with `kubectl get pods` what there is, delete what is unused, and remove the file."
_POLICIES: Final = "/apis/networking.k8s.io/v1/namespaces/NAMESPACE/networkpolicies"
#: What must be allowed: verb, resource, subresource.
_RIGHTS: Final = (
    *((verb, "pods", "") for verb in ("create", "delete", "get", "list", "patch")),
    ("create", "pods", "exec"),
    ("get", "pods", "exec"),
)


def kubernetes_provider(place: ProviderPlace) -> KubernetesProvider:
    """The provider of a home, as its ``kubernetes.yaml`` says.

    Raises:
        UsageError: there are no settings or no login, or a mistake in them.
    """
    settings = KUBERNETES.read(place.root, place.environ)
    return KubernetesProvider(settings, read_login(settings.context, place.environ), place)


catalogue_of: Final = KUBERNETES.catalogue


def sent_settings(place: ProviderPlace) -> SentSettings:
    """See `SentSettings`: pods that have a service account use that.

    Raises:
        UsageError: there are no settings, or the login works on this machine only.
    """
    return _sent(place, KUBERNETES.read(place.root, place.environ).service_account)


def _sent(place: ProviderPlace, account: str = "") -> SentSettings:
    """What leads there as this home is led; account: of pods, which is used in place of its login."""
    settings = KUBERNETES.read(place.root, place.environ)
    login = read_login(settings.context, place.environ)
    words = f"your login to {login.place} ({login.name}), with all that it may do there"
    if account:
        words = f"nothing of your login to {login.place}: the service account {account} of its pods is used"
    sent = {
        "TRAINMASTER_KUBERNETES": settings.file.read_text(),
        "KUBECONFIG": login_for_pod(login, is_its_own=bool(account)),
    }
    shown = {shown_variable(KUBERNETES.provider): str(settings.file)}
    return SentSettings(sent, shown, (words,), is_wide=not account, packages=("trainmaster[kubernetes]",))


def _check_login(place: ProviderPlace) -> None:
    """Refuse what a login has a program for, or reads from a file, which would be the server's."""
    settings = KUBERNETES.read(place.root, place.environ)
    login = read_login(settings.context, place.environ)
    check_self_contained(login)
    check_address(login.server, place)


#: See `LoginKind`. What a team's runs use, wherever their server is, makes pods with a service account, too.
TEAM_LOGIN: Final = LoginKind(
    _sent,
    _check_login,
    ("TRAINMASTER_KUBERNETES", "KUBECONFIG"),
    (shown_variable(KUBERNETES.provider),),
)


class KubernetesProvider(LedgerProvider):
    """See `LedgerProvider`. Threads may share it.

    Args:
        settings: of the user.
        login: who asks.
        place: of the home.
        send: carries requests; None for HTTP.
        sleep: between looks.
        clock: gives Unix seconds; never set back.

    Attributes:
        name: ``kubernetes``.
    """

    name = KUBERNETES.provider

    def __init__(
        self,
        settings: KubernetesSettings,
        login: KubeLogin,
        place: ProviderPlace,
        *,
        send: Send | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = steady_s,
    ) -> None:
        super().__init__(place, _HINT, clock)
        self._settings, self._sleep = settings, sleep
        namespace = settings.namespace or login.namespace or "default"
        self._api = KubeApi(login, namespace, send, sleep, clock)
        self._way = way_of(login.name, namespace, place.environ)
        self._place = f"{login.place} {namespace}"
        self._pod = partial(manifests.pod_of, settings, self._home)

    def check_up(self) -> None:
        """Refuse what does not answer, or does not take the login."""
        self._api.call("GET", "pods", query={"limit": "1"})

    # --- before anything is asked for ----------------------------------------------------------------------

    def preflight(self, requests: Sequence[NodeRequest]) -> list[str]:
        """See `Provider`: rights, machines, quotas, and what the server says to such a pod."""
        check_requests(self.name, requests)
        for request in requests:
            self._settings.machine(request.instance_type)
        self._check_rights()
        for each in self._queue_findings():
            if not each.ok:
                raise UsageError(each.found, each.advice)
        notes = self._quota_notes(requests)
        for request in requests:
            name = manifests.pod_names(self._home, "preflight", request)[0]
            try:
                body = self._new_pod("preflight", request, name, "0")
                told = self._api.call("POST", "pods", body, query={"dryRun": "All"})
                self._check_queued(told)
            except KubeRefusedError as refused:
                if not refused.is_quota:
                    raise self._refused(refused, request) from None
                if not notes:
                    notes.append(f"namespace {self._api.namespace}: {refused.words}; it is waited for")
        return notes

    def examine(self, builds: Mapping[str, str]) -> list[Finding]:
        """See `Examined`: what more may be seen than what is needed is seen where it is allowed."""
        version = ""
        with contextlib.suppress(TrainmasterError):  # it may be kept from everybody
            version = self._api.call("GET", "/version").get("gitVersion", "")
        name, space = self._api.login.name, f"namespace {self._api.namespace}"
        found = [
            Finding("login", f"Kubernetes {version} takes {name!r}".replace("  ", " ")),
            found_by(self._check_rights, "rights", f"{space}: pods may be made, reached and deleted"),
        ]
        listed = {what: self._listed(what) for what in ("resourcequotas", _POLICIES, "/api/v1/nodes")}
        for quota in listed["resourcequotas"] or ():
            for what, used, hard in answers.used_of(quota):
                found.append(room_finding(what, amount_of(used), amount_of(hard), space))
        found += self._queue_findings()
        found += answers.network_findings(listed[_POLICIES], space)
        found.append(clock_finding(self._api.clock.ahead_s, self._api.login.server))
        return found + answers.node_findings(listed["/api/v1/nodes"], builds)

    def _queue_findings(self) -> list[Finding]:
        if not self._settings.queue:
            return []
        queue, whose, is_missing = self._settings.queue, f"namespace {self._api.namespace}", True
        for path in kueue.QUEUES:
            try:
                listed = self._api.all(path.replace("NAMESPACE", self._api.namespace))
            except TrainmasterError as error:
                is_missing &= isinstance(error, KubeRefusedError) and error.status == 404
            else:
                return answers.queue_findings(listed, queue, whose)
        return answers.queue_findings([] if is_missing else None, queue, whose)

    def _check_queued(self, told: Mapping[str, Any]) -> None:
        """Refuse a queue without a Kueue: pods would have nodes one by one."""
        if self._settings.queue and not kueue.is_gated(told):
            raise UsageError(
                f"Kueue does not queue pods of namespace {self._api.namespace!r}",
                f"Leave out `queue` in {self._settings.file}, or ask for Kueue with its integration `pod`.",
            )

    def _listed(self, path: str) -> list[dict[str, Any]] | None:
        """What there is; None for what may not be seen."""
        try:
            return self._api.all(path.replace("NAMESPACE", self._api.namespace))
        except TrainmasterError:
            return None

    def _check_rights(self) -> None:
        try:
            lacking = [right for right in _RIGHTS if not self._api.may(*right)]
        except KubeRefusedError:
            return  # who may not ask finds out
        if {("create", "pods", "exec"), ("get", "pods", "exec")} - set(lacking):
            # Which one it is depends on the version.
            lacking = [right for right in lacking if right[2] != "exec"]
        if lacking:
            named = ", ".join(f"{verb} {what}{sub and '/'}{sub}" for verb, what, sub in lacking)
            raise UsageError(
                f"Kubernetes does not let {self._api.login.name!r} do this in namespace "
                f"{self._api.namespace!r}: {named}",
                "Ask for the role of docs/kubernetes.md, or name another `namespace`.",
            )

    def _quota_notes(self, requests: Sequence[NodeRequest]) -> list[str]:
        notes, quotas = [], self._listed("resourcequotas") or []  # that right is not needed
        for words, is_never in answers.short_quotas(quotas, manifests.needs_of(self._settings, requests)):
            if is_never:
                raise UsageError(
                    f"namespace {self._api.namespace}: {words}",
                    "Ask for fewer or smaller machines, or for more.",
                )
            notes.append(f"namespace {self._api.namespace}: {words}; it is waited for")
        return notes

    def dry_run(self, cluster: str, requests: Sequence[NodeRequest]) -> list[dict[str, Any]]:
        """See `Provider`: the pods."""
        return [
            planned(self.name, "create pod", self._new_pod(cluster, request, name, "${lease.Until}"))
            for request in requests
            for name in manifests.pod_names(self._home, cluster, request)
        ]

    def _new_pod(self, cluster: str, request: NodeRequest, name: str, until: str) -> dict[str, Any]:
        """One that replaces none."""
        return self._pod(cluster, request, name, until, self._group(KnownCluster(cluster), request))

    def _group(
        self, known: KnownCluster, request: NodeRequest, there: Iterable[Pod] = ()
    ) -> QueueGroup | None:
        if not self._settings.queue:
            return None
        pods = {each.name: each.counted for each in there if each.counted}
        return kueue.group_of(self._home, known, request.together, pods)

    # --- asking for it -------------------------------------------------------------------------------------

    def _known(self, cluster: str) -> KnownCluster:
        """See `LedgerProvider`; refused where another Kubernetes has it."""
        known = self._memory.of(cluster)
        place = known.about.get("place", self._place)
        if known.asked and place != self._place:
            raise UsageError(
                f"cluster {cluster} is in Kubernetes {place}, and the context "
                f"{self._api.login.name!r} leads to {self._place}",
                f"Go back with `kubectl config use-context`, or name `context` in {self._settings.file}.",
            )
        return known

    def _make(self, known: KnownCluster, request: NodeRequest, group: Sequence[NodeRequest]) -> None:
        """See `LedgerProvider`. It does not wait for nodes: machines that have none are STARTING."""
        cluster, known = known.cluster, replace(known, about={"place": self._place})
        tokens = tuple(each.token for each in group)
        queued = self._group(known, request, self._pods(cluster)) if self._settings.queue else None
        for each in group:
            asked = AskedMachines.of(each, manifests.pod_names(self._home, cluster, each))
            about = queued.about if queued else {}
            known = known.with_requests(replace(asked, group=tokens, about=about))
        self._memory.put(known)
        until = str(round(self._clock() + request.lease_s))
        try:
            for each in group:
                for name in known.asked[each.token].machines:
                    self._create(name, self._pod(cluster, each, name, until, queued))
            if self._settings.wait_s < _AT_ONCE_S and not self._settings.queue:
                self._await_nodes(cluster, tokens)
        except (KubeRefusedError, NoCapacityError) as error:
            if isinstance(error, KubeRefusedError) and error.status >= 500:
                raise  # it may be made nevertheless; the token finds it
            self._delete(name for token in tokens for name in known.asked[token].machines)
            self._memory.put(known.without(*tokens))
            if isinstance(error, KubeRefusedError) and not error.is_right:  # else it is asked again
                raise self._refused(error, request) from None
            raise
        made_now = (replace(known.asked[token], is_made=True) for token in tokens)
        self._memory.put(known.with_requests(*made_now))

    def _create(self, name: str, body: Mapping[str, Any]) -> None:
        """One pod; it may be there already, or still go."""
        for _ in range(round(_GOING_S / _LOOK_S)):
            try:
                self._api.call("POST", "pods", body)
                return
            except KubeRefusedError as refused:
                if refused.status != 409:
                    raise
            there = self._found(name)
            if there is not None and not there.is_leaving:
                return
            self._sleep(_LOOK_S)
        raise ProviderError(f"pod {name} of an earlier time has not ended yet", "It is asked for again.")

    def _await_nodes(self, cluster: str, group: Sequence[str]) -> None:
        """Wait for a moment until the scheduler has found nodes.

        Raises:
            NoCapacityError: it finds none for some.
        """
        for _ in range(round(_AT_ONCE_S / _LOOK_S)):
            waiting = [each for each in self._pods(cluster) if each.token in group and not each.is_placed]
            if not waiting:
                return
            self._sleep(_LOOK_S)
        raise NoCapacityError(waiting[0].reason, "It is tried again later.", [self._api.namespace])

    def _refused(self, refused: KubeRefusedError, request: NodeRequest) -> TrainmasterError:
        """What an answer to a new pod means."""
        if refused.is_quota:
            return NoCapacityError(refused.words, "It is tried again later.", [self._api.namespace])
        if refused.status in (400, 403, 404, 422):
            return UsageError(
                f"Kubernetes refuses machine {request.instance_type}: {refused.words}",
                f"Mend it in {self._settings.file}, or ask who looks after namespace {self._api.namespace}.",
            )
        return refused

    # --- looking -------------------------------------------------------------------------------------------

    def _pods(self, cluster: str = "") -> list[Pod]:
        """Every pod of this home, or of one of its clusters."""
        selector = f"{manifests.HOME}={manifests.home_label(self._home)}"
        if cluster:
            selector += f",{manifests.CLUSTER}={short_digest(cluster)}"
        listed = self._api.all("pods", labelSelector=selector)
        return [answers.pod_of_answer(each, self._api.clock.now()) for each in listed]

    def _found(self, name: str) -> Pod | None:
        with gone_is_fine():
            told = self._api.call("GET", f"pods/{name}", has="metadata")
            return answers.pod_of_answer(told, self._api.clock.now())
        return None

    def _look(self, known: KnownCluster) -> tuple[KnownCluster, dict[str, ListedMachine]]:
        """See `LedgerProvider`. What has waited for too long is given up, with all that belongs to it."""
        listed = {each.name: each for each in self._heard(self._pods(known.cluster))}
        given_up = self._given_up(known, listed)
        self._delete(each.name for each in listed.values() if each.is_held and not each.is_leaving)
        with contextlib.suppress(KubeRefusedError):  # no pod is changed while Kueue is away; it is done later
            self._mind_queue(listed)
        seen = dict[str, ListedMachine]()
        for asked, name, machine in known.left:
            if asked.is_made or name in listed:  # else it is about to be asked for
                there = listed.get(name) or self._found(name)
                seen[name], machine = self._seen(name, machine, there, given_up.get(asked.token, ""))
                known = known.with_machine(asked.token, name, machine)
        return known, seen

    def _mind_queue(self, listed: Mapping[str, Pod]) -> None:
        """Let go what Kueue keeps, and tell it what there is."""
        self._let_go(each.name for each in listed.values() if each.counted and each.counted.is_kept)
        if self._settings.queue:  # what its node does not end keeps its place, and ends itself
            self._delete((each.name for each in listed.values() if each.is_lost), "0")
            counted = {each.name: each.counted for each in listed.values() if each.counted}
            for name, change in kueue.shrunk(counted).items():
                with gone_is_fine():
                    self._api.call("PATCH", f"pods/{name}", change, kind="application/merge-patch+json")

    def _given_up(self, known: KnownCluster, listed: Mapping[str, Pod]) -> dict[str, str]:
        """Requests some of whose pods have had no node for too long, and why; these are deleted."""
        found: dict[str, str] = {}
        if self._settings.queue:  # it waits as long as Kueue says
            pods = {each.name: each.counted for each in listed.values() if each.counted}
            for asked in kueue.overtaken(self._home, known, pods):
                found[asked.token] = "it takes the place of a machine that has ended, in the queue of Kueue"
                self._delete(asked.machines)
            return found
        there = self._api.clock.now()
        for asked in known.asked.values():
            for pod in (listed[name] for name in asked.machines if name in listed):
                if not pod.is_placed and there - pod.created_at > max(self._settings.wait_s, _AT_ONCE_S):
                    waited = f"after {format_duration(there - pod.created_at)} {pod.reason}"
                    for token in asked.group:
                        unready = known.asked.get(token)
                        if unready and any(
                            listed[n].state is NodeState.STARTING for n in unready.machines if n in listed
                        ):
                            found.setdefault(token, waited)
        self._delete(name for token in found for name in known.asked[token].machines)
        return found

    def _seen(
        self, name: str, known: KnownMachine, pod: Pod | None, given_up: str
    ) -> tuple[ListedMachine, KnownMachine]:
        """How far a machine is, and what is known of it from now on."""
        ahead_s = self._api.clock.ahead_s
        if pod is not None:
            known = replace(
                known,
                private_address=pod.address or known.private_address,
                where=pod.node or known.where,
                started_at=known.started_at or (pod.started_at - ahead_s if pod.started_at else 0.0),
            )
        if pod is None or given_up or pod.state is NodeState.GONE:
            reason = given_up or (pod.reason if pod else "") or known.reason or "somebody has deleted its pod"
            ended_at = pod.ended_at - ahead_s if pod and pod.ended_at else self._clock()
            if pod is not None and pod.overused and not known.ended_at:
                known = replace(known, about={**known.about, _OVERUSED: pod.overused})
            return ListedMachine(NodeState.GONE), known.ended(ended_at, reason)
        if pod.state is NodeState.LEAVING:
            # What is heard now holds to its end: the events, and then the pod, are forgotten.
            reason = known.reason or answers.words_of(self._events(name)) or pod.reason
            words = reason or "its pod is being deleted"
            return ListedMachine(pod.state, words, pod.leaves_at - ahead_s), replace(known, reason=reason)
        is_queued = pod.state is NodeState.STARTING and bool(pod.reason) and not known.where
        return ListedMachine(pod.state, pod.reason, is_queued=is_queued), known

    def _heard(self, pods: Sequence[Pod]) -> list[Pod]:
        """Them, with what Kueue says of those that wait."""
        waiting = {each.counted.workload for each in pods if each.counted and each.counted.is_waiting}
        said = {each: kueue.last_words(self._events(each)) for each in waiting}
        return [
            replace(each, reason=f"{each.reason}: {words}")
            if each.counted and each.counted.is_waiting and (words := said[each.counted.workload])
            else each
            for each in pods
        ]

    def _events(self, name: str) -> list[dict[str, Any]]:
        """What happened to something, as far as we may know."""
        with contextlib.suppress(TrainmasterError):
            return self._api.all("events", fieldSelector=f"involvedObject.name={name}")
        return []

    def _reached(self, node: Node, known: KnownCluster, asked: AskedMachines, machine: KnownMachine) -> Node:
        """See `LedgerProvider`."""
        kind = self._settings.machines.get(asked.machine)
        overused = machine.about.get(_OVERUSED)
        return replace(
            node,
            overused=Overuse(str(overused)) if overused else None,
            address=node.id,
            user=_USER,
            zone=self._api.namespace,
            gpus=kind.gpus if kind else 0,
            way=self._way,
            switch=manifests.DIRECTORY,
            python=self._settings.python,
            directory=manifests.RUNTIME,
        )

    def console(self, cluster: str, id: str) -> str:
        """See `Provider`: what the pod's first process has said."""
        try:
            return self._api.text(f"pods/{id}/log", tailLines="500")
        except TrainmasterError:  # it is gone, or that right is lacking
            return ""

    # --- its lease -----------------------------------------------------------------------------------------

    def renew(self, cluster: str, lease_s: float) -> None:
        """See `Provider`. The pods' own switch is renewed inside of them; this is for what reaps."""
        body = {"metadata": {"annotations": {manifests.UNTIL: str(round(self._clock() + lease_s))}}}
        for _, name, _ in self._known(cluster).left:
            with gone_is_fine():
                self._api.call("PATCH", f"pods/{name}", body, kind="application/merge-patch+json")

    def _give_back(self, known: KnownCluster, asked: AskedMachines, ids: Collection[str]) -> None:
        """See `LedgerProvider`."""
        self._delete(ids)

    def _end(self, known: KnownCluster) -> None:
        """See `LedgerProvider`."""
        self._delete(each.name for each in self._pods(known.cluster))

    def _delete(self, names: Iterable[str], grace_s: str = _RELEASE_S) -> None:
        names = list(names)
        for name in names:
            with gone_is_fine():
                self._api.call("DELETE", f"pods/{name}", query={"gracePeriodSeconds": grace_s})
        if self._settings.queue:
            self._let_go(names)

    def _let_go(self, names: Iterable[str]) -> None:
        """Kueue keeps deleted pods of a group until all have ended, and those without a node for ever."""
        for name in names:
            with gone_is_fine():
                self._api.call("PATCH", f"pods/{name}", kueue.LET_GO, kind=_STRATEGIC)

    def reap(self, known: Sequence[str]) -> list[str]:
        """See `Provider`. What is written on pods says whose they are, and until when they are wanted."""
        before = self._clock() - CLOCKS_DIFFER_S
        over = [
            each
            for each in self._pods()
            if each.cluster not in known and each.until < before and not each.is_leaving
        ]
        self._delete(each.name for each in over)
        for cluster in {each.cluster for each in over}:
            with self._memory.alone(cluster):
                self._memory.forget(cluster)
        return [each.name for each in over if each.state is not NodeState.GONE]
