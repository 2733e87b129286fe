"""`ImMaking`: has Infrastructure Manager make the machines of a request, all of them or none, and only once.

What is asked for is written down before it is sent. What IM had begun when it was started anew it never ends:
that is seen by what it says of such machines, or by its being ready to destroy what it was at work on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from trainmaster.providers.base import NodeRequest
from trainmaster.providers.im.client import ImClient, ImRefusedError, ImState
from trainmaster.providers.im.documents import RadlDocuments
from trainmaster.providers.im.errors import explained
from trainmaster.providers.im.ledger import ImCluster, ImLedger, ImRequest
from trainmaster.providers.im.observed import ImObserved
from trainmaster.spec.errors import ProviderError

#: How long one call waits for machines that IM is making; the caller asks again.
_MADE_S: Final = 60.0
#: What is not there by then does not come any more.
_STUCK_S: Final = 1200.0
#: After so long IM is asked whether it is still at work on it.
_FORGOTTEN_S: Final = 120.0
#: How long one call waits for an infrastructure to be gone.
_GONE_S: Final = 240.0
_LOOK_S: Final = 0.5
#: Answers from here on say nothing of what was done.
_TROUBLE: Final = 500
#: What takes a moment only is looked at soon, then less and less often.
_SOON_S: Final = 0.1


class ImMaking:
    """Makes machines, and destroys infrastructures. Calls for one cluster are made one after the other.

    Args:
        client: of IM.
        observed: what it has.
        memory: what was asked for.
        documents: say it in RADL.
        sleep: between looks.
        clock: gives Unix seconds; never set back.
    """

    def __init__(
        self,
        client: ImClient,
        observed: ImObserved,
        memory: ImLedger,
        documents: RadlDocuments,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._observed = observed
        self._memory = memory
        self._documents = documents
        self._sleep = sleep
        self._clock = clock

    def made(self, known: ImCluster, system: str, request: NodeRequest, cloud: str) -> ImCluster:
        """Ask for the machines of a request, or look for those that were asked for; what is known then.

        Args:
            known: what was asked for before.
            system: the name that machines of the request have in documents.
            request: what is wanted.
            cloud: id of the one that is asked.

        Raises:
            ProviderError: IM is not done with it yet: to be asked again, which finds what was begun.
            TrainmasterError: they could not be made; none is there.
        """
        infrastructure, state = self._observed.present(known)
        if known.is_asked and not infrastructure:
            self._check_untold(known)
        repeated = known.asked.get(system)
        asked = replace(
            repeated
            or ImRequest(
                token=request.token,
                role=request.role,
                count=request.count,
                labels=dict(request.labels),
                place=request.zone or cloud,
                instance_type=request.instance_type,
                at=self._clock(),
            ),
            infrastructure=infrastructure,
        )
        known = replace(known, infrastructure=infrastructure, asked={**known.asked, system: asked})
        is_coming = (
            repeated is not None
            and state is not None
            and (_is_pending(state) or bool(self._observed.of_system(infrastructure, state, system)))
        )
        if not is_coming:  # or the call never got there
            radl = self._documents.document(known.cluster, request, self._clock())
            self._memory.put(replace(known, is_asked=True))
            if infrastructure:
                self._clear(known, asked)
            known = self._sent(known, system, radl)
        return self._until_made(known, system, cloud)

    def destroy(self, infrastructure: str) -> None:
        """Have an infrastructure destroyed, and wait until it is.

        Raises:
            ProviderError: it is still there: to be asked again.
        """
        deadline = self._clock() + _GONE_S
        is_asked, pause_s = False, _SOON_S
        while (state := self._observed.state_of(infrastructure)) is not None:
            if state.state != "deleting":
                try:
                    # Errors of the background are not reported: the second time it is waited for.
                    self._client.destroy(infrastructure, wait=is_asked)
                    is_asked = True
                except ImRefusedError as refused:
                    if refused.is_gone:
                        return
                    if refused.status != 409:  # machines are being added just now
                        raise ProviderError(
                            f"the infrastructure {infrastructure} cannot be destroyed: {refused.words}",
                            "It is tried again. If it goes on, end its machines in the cloud's own console.",
                        ) from None
            if self._clock() >= deadline:
                raise ProviderError(
                    f"Infrastructure Manager has not destroyed {infrastructure} yet", "It is asked again."
                )
            self._sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LOOK_S)

    def _check_untold(self, known: ImCluster) -> None:
        """Refuse to ask for another infrastructure while one that is there may be that which was asked for.

        Raises:
            ProviderError: IM has one of which it does not say yet whose it is.
        """
        asked_at = max((each.at for each in known.asked.values()), default=0.0)
        if self._clock() - asked_at <= _FORGOTTEN_S and (untold := self._observed.untold()):
            raise ProviderError(
                f"Infrastructure Manager does not say so far whose {untold[0]} is: perhaps that which was "
                "asked for",
                "It is asked again.",
            )

    def _clear(self, known: ImCluster, asked: ImRequest) -> None:
        """Give back what is left of an addition that IM has forgotten.

        The next addition would take it off IM's list and end it nowhere.

        Raises:
            ProviderError: IM is still at work on another addition.
        """
        left = self._client.unfinished(known.infrastructure)
        is_stuck = self._clock() - asked.at > _STUCK_S
        if any(each.is_worked_on for each in left) and not is_stuck:
            raise ProviderError(
                f"Infrastructure Manager is still adding other machines to {known.infrastructure}",
                "It is asked again.",
            )
        self._remove(
            known, [each.number for each in left if each.is_listed and each.number not in known.taken]
        )

    def _sent(self, known: ImCluster, system: str, radl: str) -> ImCluster:
        """Send a document: to the infrastructure, or for a new one."""
        asked = known.asked[system]
        try:
            if known.infrastructure:
                self._client.add(known.infrastructure, radl)
            else:
                asked = replace(asked, infrastructure=self._client.create(radl))
        except ImRefusedError as refused:
            if refused.status < _TROUBLE:  # IM says no: there is nothing; else it may have begun before
                self._forget(known, system)
            raise
        known = replace(
            known,
            is_asked=True,
            infrastructure=asked.infrastructure,
            asked={**known.asked, system: asked},
        )
        self._memory.put(known)
        self._observed.forget(known)
        return known

    def _until_made(self, known: ImCluster, system: str, cloud: str) -> ImCluster:
        """Wait until the machines of a request are listed, all of them; else there are none of them."""
        asked, infrastructure = known.asked[system], known.infrastructure
        deadline = self._clock() + _MADE_S
        is_sure = False
        while True:
            state = self._observed.state_of(infrastructure)
            if state is None:
                self._forget(replace(known, infrastructure="", is_asked=False), system)
                raise ProviderError(
                    f"the infrastructure {infrastructure} was destroyed by somebody else while it was made",
                    "It is made again.",
                )
            mine = self._observed.of_system(infrastructure, state, system)
            is_first = len(mine) == len(state.machines)
            failed = [number for number in mine if state.machines[number] == "failed"]
            if failed or (is_first and state.state in ("failed", "unconfigured") and len(mine) < asked.count):
                self._undo(known, system, mine, cloud, is_first=is_first, failed=failed)
            waited_s = self._clock() - asked.at
            is_late = waited_s > _FORGOTTEN_S
            left = self._client.unfinished(infrastructure) if is_late or len(mine) >= asked.count else []
            if len(mine) >= asked.count and not any(each.number in mine for each in left):
                # IM has numbered them again when it was done, perhaps since it told their numbers.
                self._observed.forget(known)
                state = self._observed.state_of(infrastructure)
                mine = self._observed.of_system(infrastructure, state, system) if state is not None else []
                if len(mine) >= asked.count:
                    break
            if is_late and not is_first and not any(each.is_worked_on for each in left):
                self._give_up(known, system, mine)
            if is_late and is_first and not is_sure:
                self._give_up_forgotten(known, system)
                is_sure = True
            if waited_s > _STUCK_S:
                self._undo(known, system, mine, cloud, is_first=is_first)
            if self._clock() >= deadline:
                raise ProviderError(
                    f"Infrastructure Manager has {len(mine)} of {asked.count} machines in {cloud} so far",
                    "It is asked again.",
                )
            self._sleep(_LOOK_S)
        self._remove(known, mine[asked.count :])  # of a call that was sent twice, as its answer was lost
        done = replace(asked, machines=tuple(mine[: asked.count]))
        known = replace(known, asked={**known.asked, system: done})
        self._memory.put(known)
        return known

    def _undo(
        self,
        known: ImCluster,
        system: str,
        mine: Sequence[str],
        cloud: str,
        *,
        is_first: bool,
        failed: Sequence[str] = (),
    ) -> NoReturn:
        """Some could not be made: give back the others.

        Raises:
            TrainmasterError: always: why they could not.
        """
        asked, infrastructure = known.asked[system], known.infrastructure
        # What it says of the whole infrastructure has reasons of earlier additions, too.
        message = self._client.message(infrastructure, failed[0] if failed else "")
        if is_first:
            self.destroy(infrastructure)
            known = replace(known, infrastructure="", is_asked=False)
        else:
            self._remove(known, mine)
        self._forget(known, system)
        raise explained(message, cloud, [asked.place])

    def _give_up(self, known: ImCluster, system: str, mine: Sequence[str]) -> NoReturn:
        """Give back what there is of an abandoned addition.

        Raises:
            ProviderError: always.
        """
        self._remove(known, mine)
        self._forget(known, system)
        raise ProviderError(
            f"Infrastructure Manager has stopped adding machines to {known.infrastructure}: "
            "it was started anew",
            "They are made again.",
        )

    def _give_up_forgotten(self, known: ImCluster, system: str) -> None:
        """IM destroys nothing that it is at work on; if it does, it was started again and has forgotten it.

        Raises:
            ProviderError: it had; nothing of it is there any more.
        """
        try:
            self._client.destroy(known.infrastructure)
        except ImRefusedError as refused:
            if refused.status == 409:
                return
            if not refused.is_gone:
                raise
        self.destroy(known.infrastructure)
        self._forget(replace(known, infrastructure="", is_asked=False), system)
        raise ProviderError(
            f"Infrastructure Manager has stopped making {known.infrastructure}: it was started anew",
            "It is made again.",
        )

    def _remove(self, known: ImCluster, numbers: Sequence[str]) -> None:
        if numbers:
            self._client.remove(known.infrastructure, numbers)

    def _forget(self, known: ImCluster, system: str) -> None:
        left = {name: each for name, each in known.asked.items() if name != system}
        if left or known.infrastructure:
            self._memory.put(replace(known, asked=left))
        else:
            self._memory.forget(known.cluster)


def _is_pending(state: ImState) -> bool:
    """Whether IM is still making the first machines."""
    return state.state == "pending" and not state.machines
