"""Plain Python; where an exit code is named, rank 1 ends with it."""

import shown  # isort: skip
import os
import sys
import time

shown.keep(module=__name__, file=__file__)
if shown.RANK == 1 and sys.argv[1].isdecimal():
    while not os.path.exists("computed-0.json"):
        time.sleep(0.01)  # a launcher that sees one end ends the other
    sys.exit(int(sys.argv[1]))
