"""`python -m fedgmr`."""

import sys

from fedgmr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
