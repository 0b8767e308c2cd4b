"""`warmroute bench` on real processes: a relay, the proxy, and an embedded engine."""

from integration.engine_process import serve_tiny

from warmroute.proxy.bench.calibrated import Plan, calibrate
from warmroute.proxy.bench.relaying import Server, relay_cost


async def test_a_proxied_request_costs_more_than_passing_bytes() -> None:
    cost = await relay_cost(1)
    assert 0 < cost.relay_us < cost.us


async def test_a_child_ends_with_its_input() -> None:
    """Nothing is left behind when the measurement dies."""
    server = Server("engine")
    await server.start(0)
    process = server._process
    assert process is not None
    assert process.stdin is not None
    assert await server.cpu_s() > 0
    process.stdin.close()
    assert await process.wait() == 0
    await server.stop()


async def test_an_engine_is_calibrated() -> None:
    told: list[tuple[int, int, str]] = []
    async with serve_tiny() as engine:
        plan = Plan(engine.url, "tiny", {}, 256, 2, 1, 60, 8192, 256, None)
        found = await calibrate(plan, lambda *progress: told.append(progress))
        capacity = engine.engine.options.num_blocks * engine.engine.options.block_size
    constants = found.as_object()
    assert constants["step_s"] > 0
    assert constants["prefill_s_per_token"] >= 0
    assert constants["kv_tokens"] == capacity
    assert (constants["max_batched_tokens"], constants["max_sequences"]) == (8192, 256)
    assert told[-1][0] == told[-1][1] == len(told)
