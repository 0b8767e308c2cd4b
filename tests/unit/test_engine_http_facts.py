"""What the embedded engine's server tells about itself, and its tokenizer."""

import re

import pytest
from unit.fake_generator import FakeEngine, FakeTokenizer, serve

from warmroute.adapters.embedded.engine.request import GenerationRequest
from warmroute.adapters.embedded.engine.stats import FinishedRequest

SOURCES = {"0": {"endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": ""}}


async def test_models_are_listed_by_all_their_names() -> None:
    """Each name is a card with the owner by which the proxy knows the engine."""
    async with serve(FakeEngine()) as served:
        status, listing = await served.get("/v1/models")
        _, card = await served.get("/v1/models/other")
        missing, _ = await served.get("/v1/models/gpt")
    assert status == 200
    assert listing["object"] == "list"
    assert [one["id"] for one in listing["data"]] == ["tiny", "other"]
    assert card == listing["data"][1]
    assert card["owned_by"] == "warmroute"
    assert card["max_model_len"] == 64
    assert card["parent"] is None
    assert missing == 404


async def test_health_version_and_event_sources() -> None:
    """They are answered as vLLM answers them."""
    async with serve(FakeEngine(), event_sources=SOURCES) as served:
        assert await served.get("/health") == (200, "")
        assert await served.get("/version") == (200, {"version": "1.2.3"})
        assert await served.get("/kv_event_sources") == (200, SOURCES)
    async with serve(FakeEngine()) as served:
        assert await served.get("/kv_event_sources") == (200, {})


async def test_a_text_is_tokenized_and_back() -> None:
    """Count, limit and ids, and the tokens as texts when asked for."""
    async with serve(FakeEngine()) as served:
        assert await served.post("/tokenize", {"prompt": "hi"}) == (
            200,
            {
                "count": 2,
                "max_model_len": 64,
                "tokens": [104, 105],
                "token_strs": None,
            },
        )
        _, answer = await served.post(
            "/tokenize", {"prompt": "hi", "return_token_strs": True}
        )
        assert answer["token_strs"] == ["h", "i"]
        assert await served.post("/detokenize", {"tokens": [104, 105]}) == (
            200,
            {"prompt": "hi"},
        )


async def test_a_chat_is_rendered_and_tokenized() -> None:
    """The ids are those that a chat completion would use."""
    body = {"messages": [{"role": "user", "content": "hi"}], "model": "tiny"}
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(
            "/tokenize", {**body, "add_generation_prompt": False}
        )
    assert status == 200
    assert answer["tokens"] == FakeTokenizer().encode("u:hi")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "return_token_str": True}, "return_token_str"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused(
    path: str, body: object, param: str
) -> None:
    """The error names the field."""
    async with serve(FakeEngine()) as served:
        status, answer = await served.post(path, body)
    assert status == 400
    assert answer["error"]["param"] == param


def sample(page: str, name: str) -> float:
    """Return the value of the only sample of *name*."""
    (value,) = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.M)
    return float(value)


async def test_metrics_have_the_names_of_vllm() -> None:
    """Gauges and counters tell what the engine's stats say at the scrape."""
    engine = FakeEngine()
    engine.count(running=2, waiting=3, kv_usage=0.25, preemptions=4)
    engine.count(prefix_queries=50, prefix_hits=48, prompt_tokens=7)
    engine.count(generation_tokens=9)
    async with serve(engine) as served:
        status, page = await served.get("/metrics")
    assert status == 200
    expected = {
        "num_requests_running": 2,
        "num_requests_waiting": 3,
        "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 50,
        "prefix_cache_hits_total": 48,
        "prompt_tokens_total": 7,
        "generation_tokens_total": 9,
        "num_preemptions_total": 4,
    }
    assert expected == {name: sample(page, f"vllm:{name}") for name in expected}
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"}' in page
    assert sample(page, "process_start_time_seconds") > 0
    (config,) = re.findall(r"^vllm:cache_config_info{(.*)} 1.0$", page, re.M)
    assert {'block_size="16"', 'num_gpu_blocks="32"'} <= {*config.split(",")}


async def test_latencies_are_histograms() -> None:
    """What the compute thread observes is there at the next scrape."""
    request = GenerationRequest("r", [1])
    async with serve(FakeEngine()) as served:
        served.metrics.first_token(request, 0.05)
        served.metrics.inter_token(request, 0.02)
        served.metrics.inter_token(request, 0.03)
        served.metrics.finished(FinishedRequest(request, ("stop", "length"), 0, 3, 9))
        _, page = await served.get("/metrics")
    sums = {
        "time_to_first_token_seconds": (1, 0.05),
        "inter_token_latency_seconds": (2, 0.05),
        "e2e_request_latency_seconds": (1, 9),
    }
    for name, (count, total) in sums.items():
        assert sample(page, f"vllm:{name}_count") == count
        assert sample(page, f"vllm:{name}_sum") == pytest.approx(total)
    for reason in ("stop", "length"):
        assert f'finished_reason="{reason}"' in page


async def test_metrics_are_open_metrics_when_asked() -> None:
    """The scraper's Accept header decides."""
    async with serve(FakeEngine()) as served:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with served.client.get("/metrics", headers=headers) as response:
            assert response.content_type == "application/openmetrics-text"
            assert (await response.text()).endswith("# EOF\n")
