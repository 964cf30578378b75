"""`python -m slipway` is the console script `slipway`."""

from slipway.cli.cli import main

main()
