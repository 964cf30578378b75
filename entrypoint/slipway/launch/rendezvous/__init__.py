"""The rendezvous: how the launchers of a job find each other, agree, and end together. docs/rendezvous.md has the protocol.

`claim` finds out a node rank that nobody gave; from then on the launcher uses `rendezvous.py`. `rules`, `leadership` and
`membership` decide, without a network; `server` and `coordinator` carry it out on node 0; every node has a `client` and a
`neighbour_check`. `messages` travel in the form of `codec` over a `link`. A job of a single node imports nothing of it.
"""
