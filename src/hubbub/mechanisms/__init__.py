"""One file per algorithm, to be read next to its paper: promise, device, server, plan.

`shared/` has what several of them need.
"""
