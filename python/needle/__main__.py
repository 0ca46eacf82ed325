"""``python -m needle`` is the command ``needle``."""

import sys

from needle.cli import main

if __name__ == "__main__":
    sys.exit(main())
