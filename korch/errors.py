"""The errors that users see. Each message is one line that names the cause and the remedy."""


class KorchError(Exception):
    """Base of every error that Korch raises on purpose."""


class UnsupportedModel(KorchError):
    """The model uses something Korch does not support; the message names all of it at once."""


class InvalidModel(KorchError):
    """The model breaks the rules of its own format."""


class InvalidInput(KorchError):
    """An input's name, shape or dtype is not what the model takes."""


class ArtifactError(KorchError):
    """A `.korch` file is damaged, of another format version, or made for another machine."""


class ToolchainError(KorchError):
    """The C compiler is missing or failed."""
