"""The process: uvicorn around the application, and an orderly end."""

from __future__ import annotations

import sys
from types import FrameType

import uvicorn

from sp.serve.app import Service

SWITCH_SECONDS = 0.0005
"""How long the worker may keep the interpreter from the event loop; Python's 5 ms would be felt in each token."""


class Server(uvicorn.Server):
    """Stops in order: waiting requests are refused, the one at work may end within the grace period."""

    def __init__(self, service: Service, host: str, port: int, grace: int = 30) -> None:
        self.service = service
        config = uvicorn.Config(
            service.app(), host=host, port=port, http="h11", ws="none", loop="asyncio", lifespan="on",
            log_level="warning", access_log=False, server_header=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=grace,
        )  # fmt: skip
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT or SIGTERM; a second one ends without grace."""
        self.service.worker.close()
        super().handle_exit(sig, frame)

    def serve_forever(self) -> None:
        """Run until a signal."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self.run()
