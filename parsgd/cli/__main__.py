"""``python -m parsgd.cli``, the same as ``parsgd``."""

import sys

from parsgd.cli.main import main

sys.exit(main())
