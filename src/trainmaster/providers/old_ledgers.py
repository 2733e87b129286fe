"""`upgraded`: clusters as 0.2.0 has written them down, each place in its own way. Pure."""

from __future__ import annotations

from typing import Any


def upgraded(written: dict[str, Any]) -> dict[str, Any]:
    """A cluster in the form of today.

    >>> upgraded({"asked": {"t": {"token": "t", "flavor": "m", "servers": {"i": {}}}}})["asked"]
    {'t': {'token': 't', 'machine': 'm', 'is_made': True, 'machines': {'i': {'where': ''}}}}
    """
    if "jobs" in written:
        return _of_slurm(written)
    if "requests" in written:
        return _of_ray(written)
    asked = written.get("asked", {})
    for each in asked.values():
        if "pods" in each:
            each["machines"] = each.pop("pods")
            for pod in each["machines"].values():
                pod |= {"where": pod.pop("node", ""), "private_address": pod.pop("address", "")}
        elif "servers" in each:
            each |= {"machine": each.pop("flavor"), "is_made": bool(each["servers"])}
            each["machines"] = each.pop("servers")
            for server in each["machines"].values():
                server["where"] = server.pop("zone", "")
    if place := written.pop("place", ""):
        written["about"] = {"place": place}
    return written


def _of_ray(written: dict[str, Any]) -> dict[str, Any]:
    for token, asked in written["requests"].items():
        seats = [seat for seat in written["seats"].values() if seat["token"] == token]
        for seat in seats:
            seat["private_address"] = str(seat.get("about", {}).get("address", ""))
        asked |= {"machines": {seat.pop("id"): seat for seat in seats}, "is_made": bool(seats)}
    return {"cluster": written["cluster"], "asked": written["requests"]}


def _of_slurm(written: dict[str, Any]) -> dict[str, Any]:
    asked = {}
    for token, job in written["jobs"].items():
        machines = {}
        for seat in range(job["count"]):
            name = job["nodes"][seat] if seat < len(job.get("nodes", ())) else ""
            end = {"ended_at": job.get("ended_at", 0.0), "reason": job.get("reason", "")}
            if seat in job.get("given_back", ()):
                # When is not written: no earlier than its start.
                ended_at = end["ended_at"] or max(job.get("started_at", 0.0), 1.0)
                end = {"ended_at": ended_at, "reason": "it was given back"}
            address = job.get("addresses", {}).get(name, name)
            machines[f"{job['id']}.{seat}"] = {
                "address": address, "private_address": address, "where": name,
                "started_at": job.get("started_at", 0.0), **end,
            }  # fmt: skip
        kept = {name: job[name] for name in ("token", "role", "machine", "labels")}
        about = {"job": job["id"], "leader": job.get("leader", ""), "batch": job.get("batch", "")}
        asked[token] = {**kept, "is_made": True, "machines": machines, "about": about}
    private, public = written.get("host_key", ("", ""))
    about = {"private": private, "public": public} if private else {}
    return {"cluster": written["cluster"], "asked": asked, "about": about}
