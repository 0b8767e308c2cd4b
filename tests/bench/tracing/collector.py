"""A collector that counts: OTLP over HTTP on a free port, which is printed.

GET /spans is answered with the number of spans so far. It ends with its standard input.
"""

import http.server
import os
import sys
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)


class Collector(http.server.BaseHTTPRequestHandler):
    """Take batches, and tell how many spans they had."""

    protocol_version = "HTTP/1.1"
    num_spans = 0

    def do_POST(self) -> None:
        """Count the spans of a batch."""
        content = self.rfile.read(int(self.headers["content-length"]))
        for group in ExportTraceServiceRequest.FromString(content).resource_spans:
            for scope in group.scope_spans:
                Collector.num_spans += len(scope.spans)
        self._answer(b"")

    def do_GET(self) -> None:
        """Tell the count."""
        self._answer(b"%d" % Collector.num_spans)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    """Serve until standard input ends."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
