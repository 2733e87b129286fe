"""One façade over everything a user can do; the command line, REST and the web stand on it.

Types of lower floors that its answers are made of are here, too: what stands on it imports nothing below.
"""

from __future__ import annotations

from trainmaster.lazy import lazy_exports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster.advisor.model.tables import predict_tables as predict_tables
    from trainmaster.advisor.papers.measured_table import PUBLISHED as PUBLISHED
    from trainmaster.advisor.papers.recommend import RecommendQuery as RecommendQuery
    from trainmaster.advisor.quote.interval import Interval as Interval
    from trainmaster.advisor.quote.quote import Alternative as Alternative
    from trainmaster.advisor.quote.quote import ExperimentQuote as ExperimentQuote
    from trainmaster.advisor.quote.quote import PlaceRow as PlaceRow
    from trainmaster.advisor.quote.quote import Quote as Quote
    from trainmaster.artifacts import fetch as fetch
    from trainmaster.control.checks.inputs import not_sent_of as not_sent_of
    from trainmaster.control.checks.preflight import check_names as check_names
    from trainmaster.control.checks.preflight import check_urls as check_urls
    from trainmaster.control.measure.profile_progress import ProfilePhase as ProfilePhase
    from trainmaster.control.measure.profile_progress import ProfileProgress as ProfileProgress
    from trainmaster.control.task.layout import Home as Home
    from trainmaster.db.changes import Note as Note
    from trainmaster.executors.base import place_text as place_text
    from trainmaster.objects.delegated_credentials import give_whole_keys as give_whole_keys
    from trainmaster.providers import Offer as Offer
    from trainmaster.providers import OfferFilter as OfferFilter
    from trainmaster.providers import capabilities_of as capabilities_of
    from trainmaster.service.service import Service as Service
    from trainmaster.sweeps import Curve as Curve
    from trainmaster.sweeps import TrialState as TrialState

__all__, __getattr__ = lazy_exports(__name__)
