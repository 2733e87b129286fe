"""`KINDS`: the apps that have a process on the server's machine, by the names that their rows have."""

from __future__ import annotations

from typing import Final

from trainmaster.service.apps.app_host import AppKind
from trainmaster.service.apps.apps import NOTEBOOK, TENSORBOARD
from trainmaster.service.apps.notebook import Notebook
from trainmaster.service.apps.tensorboard import TensorBoard

KINDS: Final[dict[str, type[AppKind]]] = {TENSORBOARD: TensorBoard, NOTEBOOK: Notebook}
