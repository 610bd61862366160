"""Throughput: hand-written JAX loops and PyTorch DDP to hold parsgd against."""
