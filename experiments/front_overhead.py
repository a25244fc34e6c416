"""Time that a front adds to a small request that it passes unchanged, next to the same request asked directly.

    python experiments/front_overhead.py [-n 200]

A scripted server answers at once; a front that goes by words runs in a process of its own. Requests alternate between
the two, over connections that stay open, with compression switched off (`x-sp-keep-ratio: off`) and on.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np

REPLY = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Yes."}}]}).encode()
BODY = {"messages": [{"role": "user", "content": "Is anybody there? " * 10}]}


class Upstream(BaseHTTPRequestHandler):
    """Answers every request alike."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(REPLY)}\r\n\r\n"
        self.wfile.write(head.encode() + REPLY)

    def log_message(self, *args: Any) -> None:
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200, help="requests of each kind")
    options = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    direct = f"http://127.0.0.1:{server.server_port}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = ["-m", "sp", "front", "--upstream", direct, "--scorer", "bm25", "--port", str(port), "--no-access-log"]
    process = subprocess.Popen([sys.executable, *line])
    kinds = {"direct": (direct, {}), "off": (f"http://127.0.0.1:{port}", {"x-sp-keep-ratio": "off"})}
    kinds["on"] = (kinds["off"][0], {})
    times: dict[str, list[float]] = {name: [] for name in kinds}
    try:
        with httpx.Client(trust_env=False, timeout=30) as client:
            while process.poll() is None:
                try:
                    client.get(f"{kinds['on'][0]}/metrics")
                    break
                except httpx.ConnectError:
                    time.sleep(0.2)
            for number in range(options.n + 10):
                for name, (url, headers) in kinds.items():
                    start = time.perf_counter()
                    client.post(f"{url}/v1/chat/completions", json=BODY, headers=headers).raise_for_status()
                    if number >= 10:  # the first ones open connections
                        times[name].append(1e3 * (time.perf_counter() - start))
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
    for name, values in times.items():
        added = np.array(values) - np.array(times["direct"])
        median, high = np.percentile(values, [50, 95])
        print(f"{name}: n {len(values)}, median {median:.2f} ms, p95 {high:.2f} ms, added {np.median(added):.2f} ms "
              f"(p95 {np.percentile(added, 95):.2f} ms)")  # fmt: skip


if __name__ == "__main__":
    main()
