"""The muster: how the launchers of a job find each other, agree, and end together. docs/muster.md has the protocol.

`rendezvous.py` is what the launcher uses; `server`, `coordinator` and `roster` are node 0's part, `client` and `ring`
everybody's; `messages` and `link` are what is sent, and how. Nothing here is imported by a job of a single node.
"""
