"""Plant the mistakes: ``python tests/mistakes.py [WORDS]``, see `support.mistakes`."""

import sys

from support.mistakes import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
