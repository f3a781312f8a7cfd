"""`python -m coseek` is `coseek`."""

import sys

from coseek.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
