"""One run, from its sizes to its records; `parsgd.train` puts it together."""
