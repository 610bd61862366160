"""Fashion-MNIST: which method on how many workers reaches the accuracy soonest?

    python experiments/fashion_mnist.py [KEY=VALUE ...]

is ``parsgd train -m +experiment=fashion_mnist``, the table of the README;
conf/experiment/fashion_mnist.yaml says what is swept.
"""

import sys

from parsgd.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", "-m", "+experiment=fashion_mnist", *sys.argv[1:]]))
