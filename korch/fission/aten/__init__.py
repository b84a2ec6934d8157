"""Fission of PyTorch's core ATen operators. Nothing here needs PyTorch."""
