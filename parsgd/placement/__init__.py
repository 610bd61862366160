"""Where workers run, and what of theirs is stored once."""
