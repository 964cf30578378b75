"""Stands in for torch and those of its modules that the agent and our workers' bookkeeping import: there is next to nothing in it.

Where a stand-in asks for more of torch, its process fails, instead of importing torch for seconds (stand_ins/sitecustomize.py).
"""

from types import SimpleNamespace

default_generator = SimpleNamespace(seed=lambda: None)
rendezvous = None
