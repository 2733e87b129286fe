"""How the providers round what they bill."""

from __future__ import annotations

from typing import Final

#: (quantum, minimum) in seconds for Linux machines: AWS and Google bill seconds after the first
#: minute, Azure bills seconds.
TERMS: Final = {"aws": (1.0, 60.0), "gcp": (1.0, 60.0), "azure": (1.0, 0.0)}

#: For those of whom nothing is known: whole minutes, so that nobody is promised too little.
UNKNOWN: Final = (60.0, 60.0)


def billing_terms(provider: str) -> tuple[float, float]:
    """Quantum and minimum of a provider, seconds."""
    return TERMS.get(provider, UNKNOWN)
