"""``python -m parsgd``: the console command."""

import sys

from parsgd.cli import main

sys.exit(main())
