"""``python -m memplan_cli`` and the ``memplan`` script."""

from __future__ import annotations

from memplan_cli.cli import main

if __name__ == "__main__":
    main()
