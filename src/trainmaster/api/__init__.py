"""What ``import trainmaster`` gives: a `ClientProtocol` of a home or a server, and what stands on it."""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.api.client import Client as Client
    from trainmaster.api.embedded import EmbeddedClient as EmbeddedClient
    from trainmaster.api.protocol import ClientProtocol as ClientProtocol
    from trainmaster.api.results import Accepted as Accepted
    from trainmaster.api.results import Downloaded as Downloaded
    from trainmaster.api.results import Event as Event
    from trainmaster.api.results import ExperimentStatus as ExperimentStatus
    from trainmaster.api.results import LogQuery as LogQuery
    from trainmaster.api.results import Model as Model
    from trainmaster.api.results import RunPlan as RunPlan
    from trainmaster.api.results import RunQuote as RunQuote
    from trainmaster.api.results import RunStatus as RunStatus
    from trainmaster.api.run import Run as Run

__all__, __getattr__ = lazy_exports(__name__)
