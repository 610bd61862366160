"""Configs as Hydra composes them from the shipped files, and what they build."""

import hydra

from parsgd.config import objects, schema
from parsgd.config.choices import conf_dir


def compose(*overrides, **options):
    schema.register()
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides), **options)


def build(*overrides, **options):
    return objects.build(compose(*overrides), **options)
