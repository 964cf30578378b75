"""A copy of a run's snapshots and records in a store that outlives every machine: a bucket, or a folder on another disk.

`address.py` is what a user types. `objects.py` is what a store can do; `folder.py` and `cloud.py` do it. `layout.py` names the
objects of a run, `claims.py` keeps attempts apart, `catalog.py` finds what is valid, `upload.py`, `download.py` and `records.py`
copy, `retention.py` deletes. `copier.py` is the process that does all this beside a job, and `restore.py` what it does before.
"""
