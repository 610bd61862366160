"""parsgd: research on parallel SGD in JAX."""
