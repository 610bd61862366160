"""From Hydra's config to the objects of a run, and what is wrong with a config."""
