"""Security groups -> the packet filter of one host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from trainmaster.dataclass import dataclass
from trainmaster.lab.errors import LabError
from trainmaster.lab.shell import call, inside

#: The kernel's older interface first: where both are there, only that one can queue packets (`delay_line`).
_RESTORERS: Final = ("iptables-legacy-restore", "iptables-restore", "iptables-nft-restore")
_PORTS: Final = ("tcp", "udp", "sctp")
_ANY_TYPE: Final = -1


@dataclass(frozen=True, slots=True)
class Permission:
    """What a rule of a security group lets through.

    Attributes:
        protocol: ``tcp``, ``udp``, ``icmp``, a number, or ``-1`` for all.
        first: port, or type of ICMP; None for all.
        last: port, or code of ICMP; None for all.
        sources: networks at the other end; for egress, targets.
    """

    protocol: str
    first: int | None
    last: int | None
    sources: tuple[str, ...]


def permissions(rules: Iterable[Any], members: Mapping[str, Sequence[str]]) -> list[Permission]:
    """The rules of a group of the API's library.

    Args:
        rules: its own objects.
        members: group -> private addresses of the instances in it.
    """
    found = []
    for rule in rules:
        if rule.source_group:
            sources = tuple(
                f"{address}/32" for address in sorted(members.get(rule.source_group.get("GroupId"), ()))
            )
        else:
            sources = (rule.cidr_ipv4,) if rule.cidr_ipv4 else ()  # hosts speak IPv4 only
        if sources:
            found.append(Permission(rule.ip_protocol, rule.from_port, rule.to_port, sources))
    return found


def filter_table(ingress: Iterable[Permission], egress: Iterable[Permission], metadata: str) -> str:
    """The table ``filter``, as ``iptables-restore`` reads it. What answers something allowed is allowed too.

    >>> print(filter_table([Permission("tcp", 22, 22, ("0.0.0.0/0",))], [], "169.254.169.254"), end="")
    *filter
    :INPUT DROP [0:0]
    :FORWARD DROP [0:0]
    :OUTPUT DROP [0:0]
    -A INPUT -i lo -j ACCEPT
    -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
    -A OUTPUT -o lo -j ACCEPT
    -A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
    -A OUTPUT -d 169.254.169.254 -j ACCEPT
    -A INPUT -s 0.0.0.0/0 -p tcp --dport 22:22 -j ACCEPT
    COMMIT
    """
    lines = ["*filter", ":INPUT DROP [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT DROP [0:0]"]
    for chain, flag in (("INPUT", "-i"), ("OUTPUT", "-o")):
        lines.append(f"-A {chain} {flag} lo -j ACCEPT")
        lines.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
    lines.append(f"-A OUTPUT -d {metadata} -j ACCEPT")
    for chain, flag, rules in (("INPUT", "-s", ingress), ("OUTPUT", "-d", egress)):
        for rule in rules:
            lines += [f"-A {chain} {flag} {network}{_match(rule)} -j ACCEPT" for network in rule.sources]
    return "\n".join(dict.fromkeys([*lines, "COMMIT"])) + "\n"


def _match(rule: Permission) -> str:
    if rule.protocol == "-1":
        return ""
    words = f" -p {rule.protocol}"
    if rule.protocol in _PORTS and rule.first is not None and rule.first >= 0:
        return f"{words} --dport {rule.first}:{rule.last if rule.last is not None else rule.first}"
    if rule.protocol == "icmp" and rule.first is not None and rule.first != _ANY_TYPE:
        code = "" if rule.last in (None, _ANY_TYPE) else f"/{rule.last}"
        return f"{words} --icmp-type {rule.first}{code}"
    return words


class PacketFilter:
    """Writes tables into the namespaces of hosts; knows which of the system's tools works.

    Args:
        namespace: one to try the tools in.

    Raises:
        LabError: none works.
    """

    def __init__(self, namespace: Path) -> None:
        probe = filter_table([], [Permission("-1", None, None, ("0.0.0.0/0",))], "169.254.169.254")
        probe = probe.replace(" DROP ", " ACCEPT ")
        said = ""
        for tool in _RESTORERS:
            try:
                call(inside(namespace, tool), text=probe)
            except LabError as error:
                said = said or str(error)
            else:
                self.tool = tool
                return
        raise LabError(
            f"security groups cannot be enforced here: {said}", "The lab needs iptables with conntrack."
        )

    def write(self, namespace: Path, table: str) -> None:
        """Replace a table of a host, at once and whole."""
        call(inside(namespace, self.tool), text=table)
