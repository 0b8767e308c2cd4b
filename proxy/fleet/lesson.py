"""What a probe's report teaches about a backend."""

import logging
from typing import NamedTuple

from warmroute.policies.routing.load import FleetLoad
from warmroute.proxy.fleet.backend import Backend
from warmroute.proxy.fleet.probe import Report

logger = logging.getLogger(__name__)


class Lesson(NamedTuple):
    """Whether there was something to learn.

    Attributes:
        is_news: Something about the backend became known or changed.
        changes_routes: It bears on who may serve what.
    """

    is_news: bool
    changes_routes: bool


def learn(backend: Backend, report: Report, load: FleetLoad) -> Lesson:
    """Give a backend what *report* found, and log what is new."""
    is_new = backend.learn_engine(report.adapter, report.detected)
    has_events = backend.learn_events(report.event_sources)
    has_models = report.models is not None and backend.learn_models(report.models)
    if has_models:
        extra = {"backend": backend.name, "models": len(backend.models)}
        logger.info("backend_models_changed", extra=extra)
    if backend.speed_class != backend.candidate.speed.name:
        for candidate in backend.candidates:
            load.classify(candidate, backend.speed_class)
    has_facts = backend.learn_facts(report.facts) or is_new
    if has_facts:
        _tell(backend)
    has_ranks = backend.learn_ranks(load)
    changes_routes = has_models or has_facts or has_ranks
    return Lesson(changes_routes or has_events, changes_routes)


def _tell(backend: Backend) -> None:
    extra = {
        "backend": backend.name,
        "engine": backend.engine,
        "version": backend.facts.version,
        "block_size": backend.block_size,
        "capacity_tokens": backend.capacity_tokens,
    }
    logger.info("backend_recognised", extra=extra)
