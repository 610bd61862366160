"""Where workers run, and which of their values are stored only once."""
