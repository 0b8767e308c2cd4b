"""The section of the configuration that tells how requests are recorded."""

from typing import Annotated

from pydantic import Field

from warmroute.proxy.config.fields import ByteCount, Count, FilePath, Number, Section

MAX_BYTES = 2**50


class RotateConfig(Section):
    """Bound the records on disk: `max_bytes` times `keep` + 1, at most."""

    max_bytes: ByteCount = Field(
        default=67_108_864,
        ge=1_048_576,
        le=MAX_BYTES,
        description="Size at which a file of records is put aside as `path.1`.",
    )
    keep: Annotated[int, Number] = Field(
        default=4,
        ge=0,
        le=1000,
        description="Files that are kept beside the one being written.",
    )


class RecordsConfig(Section):
    """Write a line for each request, for `warmroute replay`; no prompt text."""

    short_form = "path"

    path: FilePath = Field(
        description="File of the records, relative to this file; its folder must be "
        "there. Readable by its owner only."
    )
    rotate: RotateConfig = Field(
        default_factory=RotateConfig, description="How much is kept on disk."
    )
    tokens_per_hash: Count = Field(
        default=512,
        description="Prompt tokens that one recorded hash stands for, at least. Fewer "
        "show shorter shared prefixes, in larger files.",
    )
