"""`python -m slipway` is the console script `slipway`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory, whose files must not stand in for what the launcher imports

from slipway.cli import main

main()
