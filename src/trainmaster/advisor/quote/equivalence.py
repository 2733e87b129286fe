"""Which candidates take the same time, draw for draw: thousands differ in price and place only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainmaster.advisor.market.candidates import Candidates
from trainmaster.advisor.market.machines import Machines, codes, joined
from trainmaster.advisor.market.pairs import NetworkCards
from trainmaster.advisor.model.shapes import Floats
from trainmaster.dataclass import dataclass

Ints = NDArray[np.int_]


@dataclass(frozen=True)
class Equivalence:
    """m candidates in g kinds.

    Attributes:
        first: (g,) one row of each kind. back: (m,) the kind of every row.
    """

    first: Ints
    back: Ints

    def __len__(self) -> int:
        return len(self.first)


def alike(
    some: Candidates,
    machines: Machines,
    servers: Machines,
    kind: Ints,
    server_kind: Ints,
    *,
    alone: bool = False,
) -> Equivalence:
    """Kinds of candidates.

    Args:
        some: all of one workload.
        machines: that they index.
        servers: that they index.
        kind: (k,) machines that compute and come alike, beside their network.
        server_kind: servers' machines that come alike.
        alone: as if nothing went over a network, and no machine was ever lost.
    """
    node = joined(kind, codes(machines.per_node), codes(machines.baseline))
    code = node[some.machine]
    if not alone:
        code = _pairs(some, machines, servers, joined(node, machines.spot.astype(int)))
    numbers = [some.workers.astype(int), some.nodes.astype(int), _numbered(some.at_once)]
    numbers.append(_numbered(some.machines + some.servers))
    if len(servers):
        numbers.append(np.where(some.server >= 0, server_kind[some.server] + 1, 0))
    for number in numbers:
        code = code * (int(number.max(initial=0)) + 1) + number
    _, first, back = np.unique(code, return_index=True, return_inverse=True)
    return Equivalence(first, back.ravel())


def _pairs(some: Candidates, machines: Machines, servers: Machines, node: Ints) -> Ints:
    """(m,) numbers of kinds of pairs: the node's, with the network and what servers may be taken back."""
    which = some.machine * (len(servers) + 1) + some.server + 1
    pair, back = np.unique(which, return_inverse=True)
    machine, server = pair // (len(servers) + 1), pair % (len(servers) + 1) - 1
    cards = [codes(column) for column in NetworkCards.of(machines, servers, machine, server).features().T]
    theirs: list[Ints] = []
    if len(servers):
        columns = [
            servers.spot[server].astype(int),
            codes(servers.vcpus[server]),
            codes(servers.baseline[server]),
        ]
        theirs = [np.where(server >= 0, column, 0) for column in columns]
    kinds = joined(node[machine], *cards, *theirs)
    return kinds[back.ravel()]


def _numbered(values: Floats) -> Ints:
    return np.zeros(len(values), dtype=int) if (values == values[:1]).all() else codes(values)
