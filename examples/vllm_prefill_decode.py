"""A router in front of a prefill engine and a decode engine, which speaks as they do.

tcctl up
vllm serve MODEL --port 8100 --kv-transfer-config '{"kv_connector": "TensorCastConnector",
    "kv_role": "kv_producer", "kv_load_failure_policy": "recompute"}'
vllm serve MODEL --port 8200 --kv-transfer-config '{"kv_connector": "TensorCastConnector",
    "kv_role": "kv_consumer", "kv_load_failure_policy": "recompute"}'
python examples/vllm_prefill_decode.py http://127.0.0.1:8100 http://127.0.0.1:8200 8000

The two engines may be on two nodes. Send your requests to port 8000.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tensorcast.engines.vllm.disaggregation import prefill

PROMPTS = ("/v1/completions", "/v1/chat/completions")
ANSWER_S_MAX = 600.0


class Router(ThreadingHTTPServer):
    """Answers with what the decode engine answers."""

    daemon_threads = True

    def __init__(self, prefill_url: str, decode_url: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.prefill_url, self.decode_url = prefill_url, decode_url


class Handler(BaseHTTPRequestHandler):
    server: Router

    def do_GET(self) -> None:
        self.forward(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.forward(self.prefilled(body) if self.path in PROMPTS else body)

    def prefilled(self, body: bytes) -> bytes:
        """The request for the decode engine, once the prefill engine has computed the prompt."""
        try:
            request = json.loads(body)
        except ValueError:
            return body  # the decode engine says what is wrong
        return json.dumps(prefill(self.server.prefill_url, self.path, request)).encode()

    def forward(self, body: bytes | None) -> None:
        """Sends it to the decode engine, and passes on what comes as it comes."""
        url = f"{self.server.decode_url}{self.path}"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            answer = urllib.request.urlopen(request, timeout=ANSWER_S_MAX)
        except urllib.error.HTTPError as error:
            answer = error  # it answers, too
        except OSError as error:
            self.send_error(502, f"The decode engine does not answer: {error}")
            return
        with answer:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)


def as_url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: http://HOST:PORT is one.")
    return text.rstrip("/")


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("prefill", metavar="PREFILL_URL", type=as_url)
    parser.add_argument("decode", metavar="DECODE_URL", type=as_url)
    parser.add_argument("port", metavar="PORT", type=int)
    given = parser.parse_args()
    try:
        with Router(given.prefill, given.decode, given.port) as router:
            router.serve_forever()
    except (OSError, OverflowError) as error:
        sys.exit(f"Error: port {given.port} cannot be used: {error}")
    except KeyboardInterrupt:
        pass
