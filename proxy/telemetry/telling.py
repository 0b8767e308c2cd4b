"""What an exporter of spans tells of itself: where it sends, and why it failed."""

MAX_REASON = 300


class Telling:
    """Be able to say what a log line about failed exports needs.

    Attributes:
        endpoint: Where spans are sent, without credentials.
        failure: Why the last batch that failed did so; empty where nobody knows.
    """

    endpoint = ""
    failure = ""


def without_credentials(url: str) -> str:
    """Return *url* without the user and password that it may hold."""
    scheme, slashes, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}"


def innermost(error: BaseException) -> str:
    """Return in words what began a chain of errors, as the operating system has it."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:MAX_REASON]
