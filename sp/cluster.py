"""Ray clusters: connect to a running one by address, or start one on this machine that ends with this process."""

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
    "RAY_USAGE_STATS_ENABLED": "0",  # no usage reports to Ray's authors
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a worker without a GPU keeps its CUDA_VISIBLE_DEVICES
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # logs of its processes stay in its log files, out of our output
    "RAY_prestart_worker_first_driver": "0",  # otherwise one process per CPU starts first, and actors wait for them
}
HEAD_SECONDS = 10.0  # timeout of a connection to the head; Ray itself would try for many minutes
RETURN_SECONDS = 5.0  # timeout for resources of workers that have just ended
LOOPBACK = "127.0.0.1"
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Tells Ray that no other host may join: its processes then listen on `LOOPBACK` only.

Processes that Ray starts read it. This process read it when Ray was first imported, which may have been earlier.
"""


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray.

    Attributes
    ----------
    ray : module
        Ray itself.
    alone : bool
        True if the cluster is this machine only, unreachable for others.
    opened : bool
        True if `close` ends the connection; one that was open before stays open.
    reaper : Popen, optional
        Process that kills remaining processes of Ray if this one is killed.
    """

    ray: Any
    alone: bool
    opened: bool
    reaper: subprocess.Popen[bytes] | None = None

    def free(self, kind: str, enough: int = 1) -> int:
        """Return the number of free whole GPUs or CPUs; `kind` is ``"GPU"`` or ``"CPU"``.

        Workers that have just ended release theirs a little later, so it waits up to `RETURN_SECONDS` for `enough`.
        """
        end = time.monotonic() + RETURN_SECONDS
        while True:
            if (count := int(self.ray.available_resources().get(kind, 0))) >= enough or time.monotonic() > end:
                return count
            time.sleep(0.1)

    def share(self, kind: str, workers: int) -> dict[str, int]:
        """Return Ray's resource arguments for one of several workers; on a single machine they divide its CPUs."""
        if kind == "GPU":
            return {"num_gpus": 1}
        return {"num_cpus": max(1, (os.cpu_count() or 1) // workers) if self.alone else 1}

    def close(self) -> None:
        """End the connection, and the cluster if it runs on this machine only."""
        if self.opened:
            self.ray.shutdown()
        if self.reaper is not None:
            self.reaper.kill()
            self.reaper.wait()
            self.reaper.stdin.close()  # type: ignore[union-attr]


def join(option: str, address: str | None = None, workers: int = 1) -> Cluster:
    """Connect to the cluster at an address, else at ``RAY_ADDRESS``; otherwise start one on this machine.

    Parameters
    ----------
    option : str
        Option that needs Ray, for the message if it is not installed.
    address : str, optional
        ``HOST:PORT`` of the head, or ``auto`` for a cluster that runs on this machine.
    workers : int
        Least number of CPUs that a cluster of our own declares; more workers than cores share them.

    Raises
    ------
    ConfigError
        Ray is not installed, or there is no cluster at the address.
    """
    address = address or os.environ.get(ADDRESS)
    if address is not None and address != "auto":
        _check_head(address)
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    if address is None:
        os.environ.update(ALONE)
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError(f"{option} needs the package ray; pip install 'sp-prefill[ray]'") from None
    if ray.is_initialized():
        return Cluster(ray, alone=ray.util.get_node_ip_address() == LOOPBACK, opened=False)
    if address is None:  # `ALONE` for this process, where Ray may have been imported before
        import_module("ray._private.ray_constants").ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
    reaper = _reaper() if address is None else None
    own = {"num_cpus": max(workers, os.cpu_count() or 1), "object_store_memory": OBJECT_STORE}
    try:
        ray.init(
            address=address or "local", log_to_driver=False, include_dashboard=None if address else False,
            logging_level="FATAL", **({} if address else own),
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if reaper is not None:
            reaper.kill()
        reason = plain(str(error).strip().partition("\n")[0])
        if "AuthToken" in f"{error} {error.__cause__}":
            reason = "it rejected the token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on its head"
        raise ConfigError(f"no Ray cluster {f'at {address}' if address else 'on this machine'}: {reason}") from None
    alone = ray.util.get_node_ip_address() == LOOPBACK
    if address is None and not alone:
        ray.shutdown()
        raise ConfigError(
            f"{option}: this version of Ray would listen on all network interfaces; start a cluster and pass --address"
        )
    return Cluster(ray, alone, opened=True, reaper=reaper)


OWNER = "SP_RAY_OWNER"  # environment variable by which the processes of a cluster of our own are recognised
LEFT_SECONDS = 5.0  # time in which Ray ends most of its own processes after their owner was killed


def _reaper() -> subprocess.Popen[bytes] | None:
    """Start a process that kills the remaining processes of Ray some seconds after this one has ended.

    Ray's agents themselves would wait a minute for a head that is gone. None if the system has no ``/proc``.
    """
    if not Path("/proc/self/environ").exists():
        return None
    owner = os.environ[OWNER] = secrets.token_hex(8)
    command = (sys.executable, "-c", f"from sp.cluster import end_left; end_left({owner!r})")
    # a session of its own, so that Ctrl-C in the terminal does not reach it
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def end_left(owner: str) -> None:
    """Wait until standard input ends, as it does with the owner, and kill the owner's remaining processes of Ray."""
    sys.stdin.buffer.read()
    time.sleep(LEFT_SECONDS)
    mark = f"{OWNER}={owner}".encode()
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if marked and (folder / "cmdline").read_bytes().startswith(b"ray::"):
                os.kill(int(folder.name), signal.SIGKILL)


def _check_head(address: str) -> None:
    """Raise ConfigError if an address is not ``HOST:PORT``, or nothing listens there."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f"the address of a Ray cluster is HOST:PORT of its head, e.g. 10.0.0.1:6379, not {short(address)!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"no Ray cluster at {short(address)}: {reason}; start one with ray start --head, or omit --address"
        ) from None
