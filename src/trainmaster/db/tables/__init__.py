"""All tables: of `runs`, `teams` and `models`; one `metadata`."""

from trainmaster.db.tables.models import *  # noqa: F403
from trainmaster.db.tables.runs import *  # noqa: F403
from trainmaster.db.tables.teams import *  # noqa: F403
