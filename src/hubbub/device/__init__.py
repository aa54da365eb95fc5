"""Everything that may run on a user's device: light imports only, no server code."""
