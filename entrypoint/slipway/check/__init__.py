"""Is this node fit for a job? Probes without torch, each independent of the others, and the table of what they found.

`quick.py` runs all that need neither torch nor other nodes; `products.py` and `nodes.py` start the parts that need torch in
processes of their own; `selftest.py` tries whole jobs. Every probe reads the world in one function and turns the reading into
findings in another.
"""
