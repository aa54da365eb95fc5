"""States, the decode engine and everything else that runs where reports arrive."""
