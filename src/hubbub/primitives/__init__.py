"""What privacy and bytes rest on: coins, exact samplers, kernels, public hashing, the Walsh transform, wire and files.

Nothing here knows what a record or a mechanism is.
"""
