"""What is known of a run, shown to people: its state, the logs of its ranks, its traces, a report as a page, an archive for a bug
report.
"""
