"""How long what takes part in a cluster may be silent, and what follows.

None of these makes a node dead: that says `Engine.alive` alone. ``docs/development/engines.md`` has a table.
"""

from __future__ import annotations

from typing import Final

#: A node has to answer a question for news in the time that it was given and so much more, or is unreachable.
LATE_S: Final = 5.0
#: A head that has told nothing for so long is unreachable: it is asked elsewhere whether it is gone.
HEAD_SILENT_S: Final = 8.0
#: A driver that has asked a node for nothing for so long is gone: what it held there is dropped.
DRIVER_GONE_S: Final = 15.0
#: What speaks with an engine on a head that can be reached is given up, and made again, after so long.
MUTE_S: Final = 20.0
#: A machine that answers nothing for so long is given up and replaced: the engine is told that it leaves.
GIVEN_UP_S: Final = 60.0
#: A node of an earlier driver that does not answer is waited for until its machine has been given up.
SETTLE_S: Final = GIVEN_UP_S + 15.0
