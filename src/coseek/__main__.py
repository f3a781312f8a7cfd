"""The program `coseek`, also as `python -m coseek`."""

import sys


def run() -> int:
    """Import and run the program. Ctrl-C during the import, which takes a third of a second, shows no traceback."""
    try:
        from coseek.cli.main import main
    except KeyboardInterrupt:
        return 130
    return main()


if __name__ == "__main__":
    sys.exit(run())
