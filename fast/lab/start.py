"""Where the ``kvlab`` command begins: Ctrl-C ends it without a traceback from its first moment.

Processes that the command starts import this module again, and nothing of the command line with it.
"""

import signal


def main() -> None:
    """Load the command line, and run it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvlab.fast.lab import cli

    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()
