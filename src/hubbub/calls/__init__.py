"""One call for what a command does: from a table to estimates, to reports, to what would have been learned."""
