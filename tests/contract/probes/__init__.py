"""What the contract suite has to know of each target: how to reach a real one, how to upset it, and what it holds.

A new target joins by one file here, which names the ways of using it in `WAYS`.
"""
