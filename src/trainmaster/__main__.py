"""``python -m trainmaster``."""

from trainmaster.cli import main

main()
