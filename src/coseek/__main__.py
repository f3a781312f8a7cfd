"""The program `coseek`, also as `python -m coseek`."""

import sys


def run() -> int:
    """Import the program, which takes a third of a second, and run it. Ctrl-C shows no traceback meanwhile."""
    try:
        from coseek.cli.main import main
    except KeyboardInterrupt:
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
