"""`Control`: what the command line asks of a lab that runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

from trainmaster.lab.cloud import NOTICE_S, STATES, Cloud
from trainmaster.lab.hooks import backend_of
from trainmaster.lab.instance_types import find_type
from trainmaster.lab.links import ALL, OUTSIDE
from trainmaster.lab.market import ANY, InjectedFault
from trainmaster.lab.settings import GROUP_NAME, KEY_NAME
from trainmaster.lab.traffic import TrafficControl
from trainmaster.spec.errors import NotFoundError, TrainmasterError, UsageError

#: Hosts that ``lab up --hosts`` boots unless told otherwise.
USUAL_TYPE: Final = "m4.xlarge"


class Control:
    """The verbs below ``/lab``: each takes a mapping and gives one, both of JSON.

    Args:
        cloud: whose hosts they are.
        traffic: between them.
    """

    def __init__(self, cloud: Cloud, traffic: TrafficControl) -> None:
        self._cloud = cloud
        self._traffic = traffic
        self._verbs: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "status": self._status,
            "boot": self._boot,
            "terminate": self._terminate,
            "interrupt": self._interrupt,
            "freeze": self._freeze,
            "cut": self._cut,
            "heal": self._heal,
            "capacity": self._capacity,
            "quota": self._quota,
            "fault": self._fault,
            "delay": self._delay,
        }

    def do(self, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Do one.

        Raises:
            TrainmasterError: it cannot be done.
        """
        if verb not in self._verbs:
            raise NotFoundError(
                f"the lab knows no verb {verb!r}", "Is it of another version? Take it down and up."
            )
        return self._verbs[verb](arguments)

    def _status(self, _arguments: dict[str, Any]) -> dict[str, Any]:
        cloud, settings = self._cloud, self._cloud.settings
        hosts, conditions = [], {}
        with cloud.exclusively:
            for instance, host in cloud.all():
                state = instance._state.name
                assert state in STATES
                address = instance.public_ip or instance.private_ip
                hosts.append(
                    {"id": instance.id, "address": address, "type": instance.instance_type, "state": state}
                )
                notice = cloud.notice(instance.id)
                condition = {
                    "frozen": host.is_frozen or None,
                    "cut": host.is_cut or None,
                    "taken_back_at": notice[0] if notice else None,
                    "reason": instance.state_reason.message or None,
                    "private_address": instance.private_ip,
                    "zone": instance._placement.zone,
                    "spot": True if instance.lifecycle == "spot" else None,
                    "cpu_credits": host.cpu_credits,
                    "host_key": host.key.public,
                    "key_name": instance.key_name or None,
                }
                conditions[instance.id] = {
                    key: value for key, value in condition.items() if value is not None
                }
        return {
            "hosts": hosts,
            "running": True,
            "pid": os.getpid(),
            "region": settings.region,
            "zones": list(settings.zones),
            "network": settings.network,
            "scale": settings.scale.as_dict(),
            "conditions": conditions,
            "links": self._traffic.links.as_list(),
            "line": self._traffic.kind,
            **cloud.market.as_dict(),
        }

    def _boot(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Rent hosts as the user of the lab's key pair would."""
        settings = self._cloud.settings
        kind = find_type(str(arguments.get("type") or USUAL_TYPE)).name
        spot = bool(arguments.get("spot"))
        count = int(arguments["count"])
        with self._cloud.exclusively:
            backend = backend_of(settings)
            group = backend.get_security_group_by_name_or_id(GROUP_NAME)
            try:
                reservation = backend.run_instances(
                    settings.image_id,
                    count,
                    None,
                    [],
                    instance_type=kind,
                    is_instance_type_default=False,
                    placement=arguments.get("zone"),
                    region_name=settings.region,
                    subnet_id=None,
                    key_name=KEY_NAME,
                    security_group_ids=[group],
                    nics=[],
                    associate_public_ip=None,
                    tags={"instance": {"Name": "trainmaster-lab"}},
                    instance_market_options="spot" if spot else None,
                )
            except Exception as error:
                code = getattr(error, "code", None)
                if code is None:
                    raise
                raise TrainmasterError(
                    f"{code}: {getattr(error, 'message', error)}", "See `trainmaster lab status`."
                ) from None
            return {"ids": [instance.id for instance in reservation.instances]}

    def _terminate(self, arguments: dict[str, Any]) -> dict[str, Any]:
        instance, _ = self._cloud.find(str(arguments.get("id", "")))
        self._cloud.kill(instance.id)
        return {"id": instance.id}

    def _interrupt(self, arguments: dict[str, Any]) -> dict[str, Any]:
        instance, _ = self._cloud.find(str(arguments.get("id", "")), up=True)
        notice_s = float(arguments.get("notice_s", NOTICE_S))
        if not 0 <= notice_s <= 86_400:
            raise UsageError(f"a notice of {notice_s:g} s", "Give 0 to 86400 seconds.")
        return {"id": instance.id, "taken_back_at": self._cloud.interrupt(instance.id, notice_s)}

    def _freeze(self, arguments: dict[str, Any]) -> dict[str, Any]:
        instance, host = self._cloud.find(str(arguments.get("id", "")), up=True)
        host.freeze()
        return {"id": instance.id}

    def _cut(self, arguments: dict[str, Any]) -> dict[str, Any]:
        instance, host = self._cloud.find(str(arguments.get("id", "")), up=True)
        host.cut()
        return {"id": instance.id}

    def _heal(self, arguments: dict[str, Any]) -> dict[str, Any]:
        instance, host = self._cloud.find(str(arguments.get("id", "")), up=True)
        host.heal()
        return {"id": instance.id}

    def _capacity(self, arguments: dict[str, Any]) -> dict[str, Any]:
        count = arguments.get("count")
        kind, zone = str(arguments.get("type") or ANY), str(arguments.get("zone") or ANY)
        self._cloud.market.limit(kind, zone, None if count is None else int(count))
        return dict(self._cloud.market.as_dict())

    def _quota(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._cloud.market.set_quota(str(arguments.get("which", "")), int(arguments.get("vcpus", -1)))
        return dict(self._cloud.market.as_dict())

    def _delay(self, arguments: dict[str, Any]) -> dict[str, Any]:
        one, other = (self._end(str(arguments.get(key) or ALL)) for key in ("one", "other"))
        one_way, delay_ms = bool(arguments.get("one_way")), arguments.get("delay_ms")
        if delay_ms is None:
            self._traffic.links.unset(one, other, one_way=one_way)
        else:
            loss = float(arguments.get("loss", 0.0))
            self._traffic.links.set(one, other, float(delay_ms) / 1000, loss, one_way=one_way)
        self._traffic.refresh()
        return {"links": self._traffic.links.as_list(), "line": self._traffic.kind}

    def _end(self, name: str) -> str:
        if name in (ALL, OUTSIDE, *self._cloud.settings.zones):
            return name
        return str(self._cloud.find(name)[0].id)

    def _fault(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if arguments.get("clear"):
            self._cloud.market.clear_faults()
        else:
            count = arguments.get("count", 1)
            self._cloud.market.add_fault(
                InjectedFault(
                    action=str(arguments.get("action") or ANY),
                    code=str(arguments.get("code") or ""),
                    status=int(arguments.get("status", 500)),
                    count=None if count is None else int(count),
                    delay_s=float(arguments.get("delay_s", 0.0)),
                )
            )
        return dict(self._cloud.market.as_dict())
