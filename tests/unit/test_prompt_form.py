"""Multipart forms: an audio upload is routed by its model field."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.proxy.prompt import Prompt, PromptReader
from warmroute.proxy.prompt.form import WINDOW_BYTES, find_fields

PATH = "/v1/audio/transcriptions"
TYPE = b"multipart/form-data; boundary=----x1"


def field(name: str, value: bytes, extra: bytes = b"") -> bytes:
    head = b'Content-Disposition: form-data; name="' + name.encode() + b'"' + extra
    return b"------x1\r\n" + head + b"\r\n\r\n" + value + b"\r\n"


def upload(size: int) -> bytes:
    head = b'; filename="model.wav"\r\nContent-Type: audio/wav'
    return field("file", b"RIFF" + b"\x00\r\n" * (size // 3), head)


def read(*parts: bytes, content_type: bytes = TYPE) -> Prompt:
    body = b"".join(parts) + b"------x1--\r\n"
    return PromptReader().read(PATH, content_type, b"", body)


def test_the_model_field_is_found() -> None:
    prompt = read(field("model", b"whisper"), upload(100))
    assert (prompt.kind, prompt.model, prompt.grade) == ("none", "whisper", "none")


def test_the_model_is_found_behind_a_large_file() -> None:
    prompt = read(upload(10 * WINDOW_BYTES), field("model", b"whisper"))
    assert prompt.model == "whisper"


def test_stream_is_found() -> None:
    assert read(field("stream", b"true"), field("model", b"w")).stream
    assert not read(field("stream", b"false"), field("model", b"w")).stream


def test_a_file_named_model_is_not_the_model() -> None:
    assert read(field("model", b"x", b'; filename="a"')).model is None


def test_a_field_that_quotes_the_name_is_not_the_model() -> None:
    assert read(field("prompt", b'name="model"\r\n\r\nevil')).model is None


def test_quoted_boundaries_and_other_letter_cases_are_read() -> None:
    prompt = read(
        field("model", b"w"), content_type=b'Multipart/Form-Data; Boundary="----x1"'
    )
    assert prompt.model == "w"


def test_a_form_without_a_boundary_or_model_gives_none() -> None:
    assert read(field("model", b"w"), content_type=b"multipart/form-data").model is None
    assert read(upload(10)).model is None


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert read(field("model", b"w\xff")).model == "w\ufffd"


@given(st.binary(max_size=300), st.binary(max_size=30))
def test_any_bytes_are_survived(body: bytes, boundary: bytes) -> None:
    content_type = b"multipart/form-data; boundary=" + boundary
    for text in find_fields(content_type, body).values():
        assert isinstance(text, str)
