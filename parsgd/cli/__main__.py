"""``python -m parsgd.cli``, the same as ``parsgd``."""

import sys

from parsgd.cli import main

sys.exit(main())
