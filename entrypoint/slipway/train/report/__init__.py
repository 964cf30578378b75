"""A page about runs, from what they left in their directories: one HTML file that needs nothing else to be read.

slipway report runs/gpt-20260101-120000
"""

from slipway.train.report.page import NotOursError, make_page, write_page
from slipway.train.report.run import RECORDS, RunEnding, Tried, read_run

__all__ = ["RECORDS", "NotOursError", "RunEnding", "Tried", "make_page", "read_run", "write_page"]
