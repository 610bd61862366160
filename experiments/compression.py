"""What compression costs in accuracy and saves in bytes, at equal samples and rate.

    python experiments/compression.py [KEY=VALUE ...]

is ``parsgd train -m +experiment=compression``; conf/experiment/compression.yaml says
what is swept.
"""

import sys

from parsgd.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", "-m", "+experiment=compression", *sys.argv[1:]]))
