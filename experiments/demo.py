"""The demo: four strategies, two numbers of workers, two rules, two seeds, on digits.

    python experiments/demo.py [KEY=VALUE ...]

is ``parsgd train -m +experiment=demo``; conf/experiment/demo.yaml says what is swept.
"""

import sys

from parsgd.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", "-m", "+experiment=demo", *sys.argv[1:]]))
