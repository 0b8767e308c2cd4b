"""The dashboard in a real Chromium, in front of a real proxy and real engines."""

import re
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from conformance.rig import post
from integration import served
from integration.browser import Browser, browsing
from integration.engine_process import TinyEngine, serve_tiny
from integration.scripts import answer_ok
from integration.served import Served, Stage

from warmroute.proxy.demo.child import free_port

stage = served.stage

LIVE = "document.querySelector('#link').dataset.state === 'live'"
LOST = "document.querySelector('#link').dataset.state === 'lost'"
SETTLED = "document.querySelector('#paid [data-exact]')?.dataset.exact === arguments[0]"


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    async with browsing(tmp_path / "browser") as browser:
        await browser.resize(1280, 860)
        yield browser


@pytest.fixture
async def engines() -> AsyncIterator[list[TinyEngine]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serve_tiny()) for _ in "ab"]


@pytest.fixture
async def proxy(stage: Stage, engines: list[TinyEngine]) -> Served:
    """Start a proxy in front of two embedded engines, on ports that it can keep."""
    backends = [
        {"name": name, "url": str(engine.url), "engine": "embedded"}
        for name, engine in zip("ab", engines, strict=True)
    ]
    proxy = await stage.spawn(
        backends=backends,
        policy="expected_ttft",
        listen=f"127.0.0.1:{free_port()}",
        admin=f"127.0.0.1:{free_port()}",
    )
    return await proxy.ready(2)


def base(proxy: Served) -> str:
    port = proxy.address("admin")[1]
    return f"http://127.0.0.1:{port}/"


async def send(proxy: Served, request_id: str, prompt: list[int]) -> None:
    """Complete a prompt, and wait until its decision is settled."""
    fields = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    extra = f"x-request-id: {request_id}\r\n"
    reply = await proxy.request(post(fields, "/v1/completions", extra))
    assert reply.status == 200, reply
    await proxy.until(f"/api/decisions/{request_id}", lambda one: one.get("outcome"))


async def chat(proxy: Served) -> None:
    """Send prompts that share their beginnings."""
    trunk = [*range(20, 148)]
    for at in range(4):
        await send(proxy, f"r-{at}", [*trunk, *([30 + at] * 40)])
    await send(proxy, "r-4", [*trunk, *([30] * 40), *([99] * 50)])


async def test_shows_what_the_state_says(browser: Browser, proxy: Served) -> None:
    """Every figure of the overview equals /api/state, and nothing is amiss."""
    await chat(proxy)
    await browser.get(base(proxy))
    await browser.until(LIVE)
    _, state = await proxy.admin("/api/state")
    await browser.until(SETTLED, str(state["tokens"]["prompt"]))
    twice = 100 * state["paid_twice_ratio"]
    assert await browser.text("#paid-twice") == f"{twice:.1f} %"
    script = """return [...document.querySelectorAll('#paid .sums > div')].map(
        ({ children: [name, sum] }) => [name.textContent, Number(sum.dataset.exact)])"""
    tokens = state["tokens"]
    assert dict(await browser.run(script)) == {
        "Prompt tokens": tokens["prompt"],
        "Served from cache": tokens["hit"],
        "Elsewhere": tokens["elsewhere"],
        "Evicted": tokens["evicted"],
        "Unpredicted": tokens["unpredicted"],
        "Prefix index": state["index"]["blocks"],
    }
    script = """return [...document.querySelectorAll('#fleet-body tr')].map((row) =>
        [...row.children].map((cell) => cell.innerText.replace(/\\s+/g, ' ')))"""
    rows = await browser.run(script)
    for row, one in zip(rows, state["backends"], strict=True):
        cached = one["view"]["blocks"] * one["block_size"]
        assert row[0] == f"{one['name']} embedded"
        assert row[1].endswith("up")
        assert row[2:5] == ["0", "0", "0"]
        assert row[7] == one["view"]["source"]
        assert row[8] == f"{cached:,} tok"
    assert await browser.console() == []


async def test_is_light_and_asks_nobody_else(browser: Browser, proxy: Served) -> None:
    """Below 250 kB, all from this server; painted within 300 ms.

    On a machine that does something else as well, one of twelve loads must be.
    """
    paints = list[float]()
    while len(paints) < 12 and min(paints, default=300) >= 300:
        await browser.get("about:blank")
        await browser.get(base(proxy))
        await browser.until("performance.getEntriesByType('paint').length > 1")
        script = "return performance.getEntriesByName('first-paint')[0].startTime"
        paints.append(await browser.run(script))
    assert min(paints) < 300
    await browser.until(LIVE)
    script = """return performance.getEntriesByType('resource').map(
        (one) => [one.name, one.decodedBodySize])"""
    loaded = await browser.run(script)
    assert len(loaded) > 10
    assert {name.startswith(base(proxy)) for name, _ in loaded} == {True}
    assert sum(size for name, size in loaded if "/api/" not in name) < 240_000


async def test_a_decision_opens_its_explanation(
    browser: Browser, proxy: Served
) -> None:
    """The panel says what /api/decisions says; Escape closes it."""
    await chat(proxy)
    _, record = await proxy.admin("/api/decisions/r-4")
    await browser.get(base(proxy) + "#decisions")
    link = '#decision-body tr[data-id="r-4"] a'
    await browser.until(f"document.querySelector('{link}')")
    rows = "[...document.querySelectorAll('#decision-body tr')]"
    order = await browser.run(f"return {rows}.map((row) => row.dataset.id)")
    assert order == ["r-4", "r-3", "r-2", "r-1", "r-0"]
    await browser.click(link)
    await browser.until("document.querySelector('#panel').open")
    lead = await browser.text("#panel .lead")
    chosen = next(
        one for one in record["candidates"] if one["backend"] == record["chosen"]
    )
    words = f"Sent to {record['chosen']}, where {chosen['matched_tokens']['gpu']} of"
    assert lead.startswith(words)
    script = """return [...document.querySelectorAll('#panel tbody tr')].map((row) =>
        [row.querySelector('b').textContent, row.querySelector('.stack')?.ariaLabel])"""
    shown = dict(await browser.run(script))
    assert set(shown) == {"a", "b"}
    assert all(re.match(r"Wait .*, Miss .*, Decode ", one) for one in shown.values())
    panel = await browser.text("#panel")
    outcome = record["outcome"]
    assert f"Engine reported{outcome['cached_tokens']} cached" in panel
    assert f"Hit {outcome['tokens']['hit']} (" in panel
    await browser.press("Escape")
    await browser.until("!document.querySelector('#panel').open")
    assert await browser.run("return location.hash") == "#decisions"
    assert await browser.console() == []


async def test_a_lost_connection_shows_and_heals(
    browser: Browser, proxy: Served, stage: Stage
) -> None:
    """The process is killed and comes back: the page says so, and goes on."""
    await chat(proxy)
    await browser.get(base(proxy))
    await browser.until(SETTLED, "890")
    proxy.signal(signal.SIGKILL)
    await browser.until(LOST)
    assert "lost" in await browser.text("#link")
    again = await stage.spawn(path=proxy.path, **proxy.settings)
    await again.ready(2)
    await browser.until(LIVE)
    await browser.until(SETTLED, "0")
    await send(again, "new", [*range(50, 90)])
    await browser.until(SETTLED, "40")


async def test_branches_are_reached_by_keyboard(
    browser: Browser, proxy: Served
) -> None:
    """Arrow keys walk the tree, Enter opens a branch's figures, Escape closes them."""
    await chat(proxy)
    await browser.get(base(proxy) + "#prefixes")
    await browser.until("document.querySelectorAll('[role=treeitem]').length > 3")
    _, merged = await proxy.admin("/api/view/merged")
    count = "return document.querySelectorAll('[role=treeitem]').length"
    assert await browser.run(count) == merged["num_shown"]
    trunks = {one["id"]: one for one in merged["root"]["children"]}
    first_item = "document.querySelector('[role=treeitem][tabindex=\"0\"]')"
    await browser.run(f"{first_item}.focus()")
    here = "return document.activeElement.dataset.id"
    first = await browser.run(here)
    assert first in trunks
    await browser.press("ArrowRight")
    behind = {one["id"]: one for one in trunks[first]["children"]}
    child = await browser.run(here)
    assert child in behind
    await browser.press("Enter")
    assert f"{behind[child]['tokens']} tokens" in await browser.text("#branch h3")
    await browser.press("ArrowLeft", "Escape")
    assert await browser.text("#branch h3") == "How to read it"
    assert await browser.console() == []


async def test_data_is_never_markup(browser: Browser, stage: Stage) -> None:
    """A model's name, which an engine made up, is shown as it is."""
    evil = "<img src=x onerror=document.title='evil'>"
    proxy = await stage.serve(await stage.engine(answer_ok, evil))
    await proxy.until("/api/state", lambda one: one["backends"][0]["state"] == "up")
    await proxy.request(post({"model": evil, "prompt": "x"}, "/v1/completions"))
    await browser.get(base(proxy) + "#decisions")
    await browser.until("document.querySelector('#decision-body a')")
    assert evil in await browser.text("#decision-body")
    assert await browser.run("return document.querySelectorAll('img').length") == 0
    assert await browser.run("return document.title") == "warmroute"


async def test_beyond_loopback_it_asks_for_the_token(
    browser: Browser, stage: Stage
) -> None:
    """A wrong one is told, the right one opens, and lives as long as the tab."""
    token = {"WARMROUTE_ADMIN_TOKEN": "s3cret"}
    engine = await stage.engine(answer_ok)
    proxy = await stage.spawn(engine, admin="0.0.0.0:0", environ=token)
    await proxy.ready(1)
    await browser.get(base(proxy))
    await browser.until("document.activeElement?.matches('.login input')")
    assert await browser.text("#link") == "Locked"
    await browser.press(*"wrong", "Enter")
    await browser.until("document.querySelector('.login .wrong')")
    await browser.press(*"s3cret", "Enter")
    await browser.until(LIVE)
    await browser.until("document.querySelector('#fleet-body tr')")
    await browser.get(base(proxy) + "#decisions")
    await browser.until(LIVE)
    assert "s3cret" not in str(proxy.log)
    assert await browser.run("return document.cookie") == ""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_fits_a_telephone_in_any_light(
    browser: Browser, proxy: Served, theme: str
) -> None:
    """At 360 px nothing sticks out; the page follows the system, and the button."""
    await chat(proxy)
    await browser.resize(360, 780)
    await browser.prefer(prefers_color_scheme=theme)
    await browser.get(base(proxy))
    await browser.until(LIVE)
    for view in ("overview", "prefixes", "decisions", "decision/r-4", "backend/a"):
        await browser.run("location.hash = arguments[0]", view)
        if "/" in view:
            await browser.until("document.querySelector('#panel').open")
        assert await browser.run("return document.documentElement.scrollWidth") <= 360
        if "/" in view:
            await browser.press("Escape")
            await browser.until("!location.hash.includes('/')")
    ground = "return getComputedStyle(document.body.parentElement).backgroundColor"
    colours = {"light": "rgb(246, 245, 242)", "dark": "rgb(19, 20, 22)"}
    assert await browser.run(ground) == colours[theme]
    for _ in ("light", "dark"):
        await browser.click("#theme")
    assert await browser.run(ground) == colours["dark"]
    await browser.get(base(proxy))
    assert await browser.run(ground) == colours["dark"]


async def test_insights_show_what_the_state_brings(
    browser: Browser, proxy: Served
) -> None:
    """Cache killers, shadow policy and conductor, in their documented shapes."""
    await browser.get(base(proxy))
    await browser.until(LIVE)
    await browser.click("nav a[href='#insights']")
    await browser.until("document.querySelector('#insights .card')")
    assert "Nothing found" in await browser.text("#insights")
    await browser.click("nav a[href='#overview']")
    killer = {
        **{"cluster": "c", "first_block": 2, "token_offset": 32, "requests": 190},
        **{"tokens_a_day": 1_230_000, "kind": "timestamp", "sentence": "Move it."},
        "example": "<b>Now it is 9999-99-99</b>",
    }
    shadow = {
        **{"policy": "session", "requests": 200, "agreed": 150, "note": "a note"},
        "expected_ttft_s": {"first": 10.0, "shadow": 20.0},
        "matched_tokens": {"first": 900, "shadow": 800},
    }
    action = {
        **{"time": 1_790_000_000, "kind": "retain", "backend": "a", "hash": "ab"},
        **{"tokens": 640, "reason": "asked for often", "outcome": None},
    }
    store = {
        "state": {"cache_killers": [killer], "shadow": shadow},
        "conductor": {"enabled": True, "stopped": False, "actions": [action]},
    }
    await browser.run(
        """
        const { renderInsights } = await import('/static/js/insights.js');
        renderInsights(arguments[0], () => {});
        """,
        store,
    )
    text = await browser.text("#insights")
    for words in (
        *("timestamp Move it.", "<b>Now it is 9999-99-99</b>", "190 requests"),
        *("1.2M tokens a day", "75 % of 200 requests", "50 ms", "a note"),
        *("Stop the conductor", "asked for often", "not known yet"),
    ):
        assert words in text
    assert await browser.run("return document.querySelectorAll('#insights b').length")


async def test_kv_control_asks_before_it_acts(browser: Browser, proxy: Served) -> None:
    """Only what the engine can do has a button; the server's answer is shown."""
    await browser.get(base(proxy))
    await browser.until(LIVE)
    await browser.run("""
        const { controlOf } = await import('/static/js/control.js');
        const kv = { flush: true, retain: true, restore: 'it has no host tier' };
        const panel = document.querySelector('#panel');
        panel.replaceChildren(...controlOf({ name: 'a', kv }));
        panel.showModal();
    """)
    buttons = "return [...document.querySelectorAll('#panel [data-verb]')]"
    verbs = await browser.run(f"{buttons}.map((one) => one.dataset.verb)")
    assert verbs == ["flush", "retain"]
    assert "Restore: it has no host tier" in await browser.text("#panel")
    await browser.click("[data-verb=flush]")
    posts = """performance.getEntriesByType('resource').filter(
        (one) => one.name.includes('/api/kv/')).length"""
    assert await browser.run(f"return {posts}") == 0
    await browser.press("Enter")
    await browser.until("document.querySelector('#panel .result')?.dataset.state")
    await browser.until(f"{posts} === 1")  # noted once its answer was read
    assert len(await browser.text("#panel .result")) > 1


async def test_a_hundred_requests_later_it_is_bounded(
    browser: Browser, proxy: Served
) -> None:
    """What a page keeps does not grow with what has happened."""
    await browser.get(base(proxy) + "#decisions")
    await browser.until(LIVE)
    found: Any = await browser.run("""
        const { Store } = await import('/static/js/store.js');
        const store = new Store(() => {});
        store.take('state', { backends: [] });
        const root = (id) => ({ id, hits: 1, children: [] });
        for (let at = 0; at < 5000; at++) {
            store.take('sample', [at, 0, 0, 0, 0, 0]);
            store.take('decisions', [{ request_id: `r${at}` }]);
            store.take('view', { root: root(`n${at % 2 ? at : 0}`) });
            store.take('change', { backends: [{ name: 'a', at }], order: ['a'] });
        }
        return [store.history.length, store.decisions.size, store.hits.size,
                store.state.backends.length, [...store.decisions.keys()].at(-1)];
    """)
    assert found == [720, 300, 1, 1, "r4999"]
