"""Answer a generation: in one piece, or as a stream of events."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stream import Delta
from warmroute.adapters.embedded.server.choice import Choice, fresh_choices
from warmroute.adapters.embedded.server.event_stream import EventStream
from warmroute.adapters.embedded.server.facts import json_answer
from warmroute.adapters.embedded.server.generation import Generation
from warmroute.adapters.embedded.server.sampling import SamplingFields
from warmroute.adapters.embedded.server.serving import Serving
from warmroute.adapters.error_shape import describe_error
from warmroute.policies.errors import ClientError, WarmrouteError


class Shape(Protocol):
    """How one API writes its answers."""

    @property
    def whole_object(self) -> str:
        """Its ``object`` in one piece."""
        ...

    @property
    def chunk_object(self) -> str:
        """Its ``object`` in a stream."""
        ...

    def whole(self, choice: Choice) -> dict[str, object]:
        """Describe a finished choice."""
        ...

    def piece(self, choice: Choice, delta: Delta) -> dict[str, object]:
        """Describe what *delta* adds; *choice* does not hold it yet."""
        ...

    def root(self, choices: Sequence[Choice], *, is_first: bool) -> dict[str, object]:
        """Return what stands beside the choices, in whole answers and chunks."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """Hold one HTTP request's work.

    Args:
        answer_id: Id of the answer, with the client's request id in it.
        fields: Its sampling fields.
        requests: What the engine is asked, one a prompt.
        shape: How to write the answer.
    """

    answer_id: str
    fields: SamplingFields
    requests: Sequence[GenerationRequest]
    shape: Shape
    created_s: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str, model: str) -> dict[str, object]:
        """Return what every answer and chunk begins with."""
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created_s,
            "model": model,
        }


async def answer(
    request: web.Request, serving: Serving, job: Job
) -> web.StreamResponse:
    """Run *job* and answer it; leaving early aborts it."""
    async with Generation(serving.engine, job.requests) as generation:
        # Only now is it known that the engine allows so many.
        choices = fresh_choices([one.prompt_ids for one in job.requests], job.fields.n)
        if job.fields.stream:
            return await Streaming(serving, job, generation, choices).run(request)
        return await _answer_whole(serving, job, generation, choices)


async def _answer_whole(
    serving: Serving, job: Job, generation: Generation, choices: list[Choice]
) -> web.Response:
    async for at, delta in generation:
        choices[at * job.fields.n + delta.index].add(delta)
    return json_answer(
        {
            **job.head(job.shape.whole_object, job.fields.model or serving.name),
            **job.shape.root(choices, is_first=True),
            "choices": [job.shape.whole(choice) for choice in choices],
            "usage": generation.usage(),
        }
    )


class Streaming:
    """Send the deltas of a generation as they come."""

    __slots__ = ("_choices", "_generation", "_head", "_job")

    def __init__(
        self,
        serving: Serving,
        job: Job,
        generation: Generation,
        choices: list[Choice],
    ) -> None:
        self._job = job
        self._generation = generation
        self._choices = choices
        model = job.fields.model or serving.name
        self._head = job.head(job.shape.chunk_object, model)

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Stream to the end; an error after the first event is the last event."""
        events = EventStream(request)
        try:
            async for at, delta in self._generation:
                await self._send(events, at, delta)
        except WarmrouteError as error:
            if not events.is_begun:
                raise
            await events.break_off(describe_error(_as_client_error(error)))
            return events.response
        if self._job.fields.stream_options.include_usage:
            usage = self._generation.usage()
            await events.send({**self._head, "choices": [], "usage": usage})
        await events.end()
        return events.response

    async def _send(self, events: EventStream, at: int, delta: Delta) -> None:
        fields = self._job.fields
        choice = self._choices[at * fields.n + delta.index]
        # Text may lag behind its tokens; a chunk without either tells nothing.
        if (
            delta.text
            or delta.finish_reason
            or delta.logprobs
            or fields.return_token_ids
        ):
            piece = self._job.shape.piece(choice, delta)
            choice.is_begun = True
            root = self._job.shape.root([choice], is_first=not events.is_begun)
            chunk = {**self._head, **root, "choices": [piece]}
            if fields.stream_options.continuous_usage_stats:
                chunk["usage"] = self._generation.usage()
            await events.send(chunk)
        choice.add(delta)


def _as_client_error(error: WarmrouteError) -> ClientError:
    if isinstance(error, ClientError):
        return error
    return ClientError(500, "engine_failed", str(error))
