"""The parts of a run, from its sizes to its records; `parsgd.train` combines them."""
