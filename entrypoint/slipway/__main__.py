"""`python -m slipway` is the console script `slipway`."""

from slipway.cli import main

main()
