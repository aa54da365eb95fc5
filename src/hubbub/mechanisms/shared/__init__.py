"""Laws and formulas that several mechanisms share."""
