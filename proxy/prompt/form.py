"""The text fields of a multipart form, as audio uploads use it."""

import re

WINDOW_BYTES = 65536
_BOUNDARY = re.compile(rb'(?i);\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))')
_NAME = re.compile(
    rb'(?i)^content-disposition:[^\r\n]*[;\s]name="?([^"\r\n;]*)', re.MULTILINE
)


def find_fields(content_type: bytes, body: bytes) -> dict[str, str]:
    """Return the text fields near the form's ends; files are left out.

    Only the first and the last 64 KiB are looked at, so that an upload of any
    size costs the same. Anything that cannot be read is left out.
    """
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        return {}
    delimiter = b"--" + (boundary[1] or boundary[2])
    windows = [body[:WINDOW_BYTES]]
    if len(body) > WINDOW_BYTES:
        windows.append(body[-WINDOW_BYTES:])
    fields: dict[str, str] = {}
    for window in windows:
        for part in window.split(delimiter)[1:]:
            _read_part(part, fields)
    return fields


def _read_part(part: bytes, fields: dict[str, str]) -> None:
    head, blank, value = part.partition(b"\r\n\r\n")
    name = _NAME.search(head)
    if name is None or not blank or b"filename" in head.lower():
        return
    if value.endswith(b"\r\n"):
        fields[name[1].decode("latin-1")] = value[:-2].decode("utf-8", "replace")
