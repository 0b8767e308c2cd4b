"""What the engine's HTTP server refuses in a body."""

from warmroute.policies.errors import ClientError


class BadField(ClientError):
    """A field of the body is refused; *param* names it.

    Args:
        param: Path of the field, such as ``messages[0].content``.
        message: What is wrong with it; the path is put in front.
        code: Stable slug that programs may match on.
    """

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(400, code, f"{param}: {message}")
        self.param = param
