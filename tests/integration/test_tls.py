"""TLS towards clients and towards engines."""

import asyncio
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import Certificate
from conformance.raw_engine import RawEngine, Script
from conformance.rig import chat, post
from integration import served
from integration.scripts import HeldStream, answer_ok, read_rest, read_until
from integration.served import Served, Stage

stage = served.stage

CHAT = post(chat())
NEVER = {"interval_s": 3600, "timeout_s": 30}
StartTLS = Callable[[Script, Certificate], Awaitable["TLSEngine"]]


class TLSEngine(RawEngine):
    """A scripted engine behind TLS."""

    async def start_tls(self, certificate: Certificate) -> "TLSEngine":
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=certificate.server()
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"


@pytest.fixture
def certificate(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path, "server")


@pytest.fixture
async def start_tls() -> AsyncIterator[StartTLS]:
    """Start engines behind TLS."""
    engines = []

    async def start(script: Script, certificate: Certificate) -> TLSEngine:
        engines.append(await TLSEngine(script).start_tls(certificate))
        return engines[-1]

    yield start
    for engine in engines:
        await engine.stop()


class TestDataPort:
    async def test_a_connection_serves_many_requests(
        self, stage: Stage, certificate: Certificate
    ) -> None:
        """One handshake, then answers and streams as without TLS."""
        script = HeldStream()
        script.released.set()
        engine = await stage.engine(script)
        proxy = await stage.serve(engine, tls=certificate.files)
        client = await proxy.connect(certificate.client())
        for _ in range(3):
            await client.send(CHAT)
            assert (await client.receive()).status == 200
        await client.send(post(chat(stream=True)))
        assert b"[DONE]" in (await client.receive()).body
        assert engine.requests[-1].values("x-forwarded-proto") == ["https"]

    async def test_a_body_too_large_is_refused_while_it_comes(
        self, stage: Stage, certificate: Certificate
    ) -> None:
        """The answer arrives though the client is still sending, then the end."""
        proxy = await stage.serve(
            await stage.engine(answer_ok),
            tls=certificate.files,
            limits={"body_bytes": 2**20},
        )
        client = await proxy.connect(certificate.client())
        start = "POST /v1/x HTTP/1.1\r\nHost: p\r\ntransfer-encoding: chunked\r\n\r\n"
        await client.send(start.encode())

        async def upload() -> None:
            while True:
                await client.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")

        uploading = asyncio.create_task(upload())
        reply = await client.receive()
        assert reply.status == 413
        assert reply.json()["error"]["code"] == "body_too_large"
        uploading.cancel()
        await asyncio.gather(uploading, return_exceptions=True)
        assert await client.is_closed()

    async def test_last_words_arrive(
        self, stage: Stage, certificate: Certificate
    ) -> None:
        """The error event of an ended drain gets through, and a proper TLS close."""
        proxy = await stage.serve(
            await stage.engine(HeldStream()),
            tls=certificate.files,
            drain={"delay_s": 0, "timeout_s": 0.2},
        )
        client = await proxy.connect(certificate.client())
        await client.send(post(chat(stream=True)))
        await read_until(client, b"first")
        proxy.signal(signal.SIGTERM)
        assert b'"code":"draining"' in await read_rest(client)
        assert await proxy.ended() == 0

    async def test_a_renewed_certificate_comes_with_a_reload(
        self, stage: Stage, certificate: Certificate
    ) -> None:
        """New connections get it; one that does not fit its key is refused."""
        proxy = await stage.serve(await stage.engine(answer_ok), tls=certificate.files)
        before = await proxy.connect(certificate.client())
        certificate.write()
        with pytest.raises(ssl.SSLCertVerificationError):
            await proxy.connect(certificate.client())
        assert (await proxy.admin("/api/reload", "POST"))[0] == 200
        for client in (before, await proxy.connect(certificate.client())):
            await client.send(CHAT)
            assert (await client.receive()).status == 200
        key = certificate.key_path.read_bytes()
        trusted = certificate.client()
        certificate.write()
        certificate.key_path.write_bytes(key)
        status, answer = await proxy.admin("/api/reload", "POST")
        assert status == 400
        assert "tls" in answer["error"]["message"]
        await proxy.connect(trusted)

    async def test_plain_http_is_not_answered(
        self, stage: Stage, certificate: Certificate
    ) -> None:
        """Who speaks no TLS gets nothing, and harms nobody."""
        engine = await stage.engine(answer_ok)
        proxy = await stage.serve(engine, tls=certificate.files)
        plain = await proxy.connect()
        await plain.send(CHAT)
        assert await plain.is_closed()
        client = await proxy.connect(certificate.client())
        await client.send(CHAT)
        assert (await client.receive()).status == 200
        assert "Traceback" not in str(proxy.log)


class TestBackends:
    async def serve(
        self, stage: Stage, engine: TLSEngine, tls: dict[str, Any]
    ) -> Served:
        backend = {"name": "b0", "url": engine.url, "engine": "openai", "tls": tls}
        return await stage.spawn(backends=[backend], health=NEVER)

    @pytest.mark.parametrize("trusts", ["ca", "anything"])
    async def test_connections_are_kept(
        self,
        stage: Stage,
        start_tls: StartTLS,
        certificate: Certificate,
        trusts: str,
    ) -> None:
        """With its CA, or unverified, one connection serves request after request."""
        engine = await start_tls(answer_ok, certificate)
        tls = {"ca": str(certificate.path)} if trusts == "ca" else {"verify": False}
        proxy = await (await self.serve(stage, engine, tls)).ready(1)
        await proxy.logged("backend_up")
        before = engine.connections
        for _ in range(3):
            assert (await proxy.request(CHAT)).status == 200
        assert len(engine.requests) == 3
        assert engine.connections == before + 1

    async def test_an_untrusted_one_is_down_and_the_log_says_why(
        self, stage: Stage, start_tls: StartTLS, certificate: Certificate
    ) -> None:
        """Nothing is sent to it, and the reason names the certificate."""
        engine = await start_tls(answer_ok, certificate)
        wrong = Certificate(certificate.path.parent, "other")
        proxy = await self.serve(stage, engine, {"ca": str(wrong.path)})
        line = await proxy.logged("backend_down", backend="b0")
        assert "certificate" in line["reason"].lower()
        refusal = await proxy.request(CHAT)
        assert refusal.status == 503
        assert refusal.json()["error"]["code"] == "no_healthy_backend"
        assert engine.requests == []

    async def test_a_certificate_that_went_wrong_is_a_502(
        self, stage: Stage, start_tls: StartTLS, certificate: Certificate
    ) -> None:
        """An engine that comes back as somebody else gets no prompt."""
        engine = await start_tls(answer_ok, certificate)
        proxy = await self.serve(stage, engine, {"ca": str(certificate.path)})
        await proxy.ready(1)
        await engine.stop()
        await engine.start_tls(Certificate(certificate.path.parent, "other"))
        refusal = await proxy.request(CHAT)
        assert refusal.status == 502
        assert refusal.json()["error"]["code"] == "upstream_unreachable"
        assert engine.requests == []
