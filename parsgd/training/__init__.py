"""`fit`: one run, from its sizes to its records."""
