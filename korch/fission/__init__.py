"""Fission: a model's operators become the primitives of docs/primitives.md."""

from korch.fission.fission import Refusal, fission, unsupported

__all__ = ["Refusal", "fission", "unsupported"]
