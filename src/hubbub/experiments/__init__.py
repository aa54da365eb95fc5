"""The papers' figures and tables, run again on crowds with known truth and on published data."""
