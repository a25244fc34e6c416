"""A cluster of Ray: one that runs already, by its address, or one of this machine alone that ends with its user."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from sp.errors import ConfigError, plain, short

ADDRESS = "RAY_ADDRESS"
OBJECT_STORE = 256 << 20  # bytes of shared memory on this machine: rows and requests are small
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # tells nobody that it runs
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # who asks for no GPU keeps CUDA_VISIBLE_DEVICES as it is
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what its processes have to say stays in its log files, out of our output
    "RAY_prestart_worker_first_driver": "0",  # else a process a CPU starts at once, and actors wait behind them
}
HEAD_SECONDS = 10.0  # in which a head must take a connection; Ray itself would try for many minutes
RETURN_SECONDS = 5.0
LOOPBACK = "127.0.0.1"
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's way to say that no other host may join: its processes then listen on `LOOPBACK` and nowhere else.

Processes that Ray starts read it; in this one Ray did so when it was first imported, which may have been long ago.
"""


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray."""

    ray: Any
    alone: bool  # whether the cluster is this machine, which nobody else can reach
    opened: bool  # whether `close` ends the connection; one that was found open stays so
    heir: subprocess.Popen[bytes] | None = None  # ends what is left if this process is killed

    def free(self, kind: str, wanted: int = 1) -> int:
        """How many whole ``"GPU"`` or ``"CPU"`` nobody holds; what has just ended gives back its own a little later."""
        end = time.monotonic() + RETURN_SECONDS
        while True:
            if (count := int(self.ray.available_resources().get(kind, 0))) >= wanted or time.monotonic() > end:
                return count
            time.sleep(0.1)

    def share(self, kind: str, workers: int) -> dict[str, int]:
        """What one of so many workers asks Ray for; alone on a machine they share its CPUs, and so its threads."""
        if kind == "GPU":
            return {"num_gpus": 1}
        return {"num_cpus": max(1, (os.cpu_count() or 1) // workers) if self.alone else 1}

    def close(self) -> None:
        """End the connection, and the cluster with it if it is this machine alone."""
        if self.opened:
            self.ray.shutdown()
        if self.heir is not None:
            self.heir.kill()
            self.heir.wait()
            self.heir.stdin.close()  # type: ignore[union-attr]


def join(asked: str, address: str | None = None, workers: int = 1) -> Cluster:
    """Connect to the cluster at an address, else at ``RAY_ADDRESS``; else start one on this machine. `asked`: the
    option that wants Ray, for the message where it is missing; `address`: ``HOST:PORT`` of the head, or ``auto`` for a
    cluster that runs on this machine; `workers`: CPUs that a cluster of our own counts at least: more workers than
    cores share them; ConfigError: Ray is not installed, or nothing answers at the address.
    """
    given = address or os.environ.get(ADDRESS)
    if given is not None and given != "auto":
        _check_head(given)
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    if given is None:
        os.environ.update(ALONE)
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError(f"{asked} needs the package ray; pip install 'sp-prefill[ray]'") from None
    if ray.is_initialized():
        return Cluster(ray, alone=ray.util.get_node_ip_address() == LOOPBACK, opened=False)
    if given is None:
        import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    heir = _heir() if given is None else None
    own = {"num_cpus": max(workers, os.cpu_count() or 1), "object_store_memory": OBJECT_STORE}
    try:
        ray.init(
            address=given or "local", log_to_driver=False, include_dashboard=None if given else False,
            logging_level="FATAL", **({} if given else own),
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if heir is not None:
            heir.kill()
        told = plain(str(error).strip().partition("\n")[0])
        if "AuthToken" in f"{error} {error.__cause__}":
            told = "it asks for another token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its head"
        raise ConfigError(f"no cluster of Ray {f'at {given}' if given else 'on this machine'}: {told}") from None
    alone = ray.util.get_node_ip_address() == LOOPBACK
    if given is None and not alone:
        ray.shutdown()
        raise ConfigError(f"{asked}: this version of Ray would listen on all networks; start a cluster, give --address")
    return Cluster(ray, alone, opened=True, heir=heir)


OWNER = "SP_RAY_OWNER"  # in the environment of all processes of a cluster of our own, whose it is
LEFT_SECONDS = 5.0  # in which Ray ends most of its own processes where their user was killed


def _heir() -> subprocess.Popen[bytes] | None:
    """A process that outlives this one for some seconds: agents of Ray would wait a minute for a head that is gone.
    None where processes cannot be looked through.
    """
    if not Path("/proc/self/environ").exists():
        return None
    owner = os.environ[OWNER] = secrets.token_hex(8)
    command = (sys.executable, "-c", f"from sp.cluster import end_left; end_left({owner!r})")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def end_left(owner: str) -> None:
    """Wait for the end of standard input, which is that of the owner, and end what is left of Ray by then."""
    sys.stdin.buffer.read()
    time.sleep(LEFT_SECONDS)
    mark = f"{OWNER}={owner}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "cmdline").read_bytes().startswith(b"ray::"):
                os.kill(int(folder.name), signal.SIGKILL)


def _check_head(address: str) -> None:
    """ConfigError for what is no ``HOST:PORT``, or where nothing listens."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"a cluster of Ray is at HOST:PORT of its head, e.g. 10.0.0.1:6379, not at {short(address)!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no cluster of Ray at {short(address)}: {reason}; start one with ray start --head, or leave --address out"
        ) from None
