"""``python -m spikestill``: the same as the command ``spikestill``."""

import sys

from spikestill.cli import main

sys.exit(main())
