"""``python -m jaxtag``: names the commands."""

from __future__ import annotations

import sys

print(
    "usage: python -m jaxtag.COMMAND --help, where COMMAND is one of "
    "train, evaluate, predict, diagnose",
    file=sys.stderr,
)
sys.exit(2)
