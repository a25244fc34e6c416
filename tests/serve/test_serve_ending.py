"""How a server ends: the answer at work goes on, a second signal ends it, and both are told without a traceback."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
import serving as tool
import web

from sp.serve.worker import Sessions
from sp.session import Pipeline

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 4}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("signals", [1, 2])
def test_a_second_signal_ends_the_answer_at_work(
    pair: Pipeline, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], signals: int, stream: bool
) -> None:
    opened, answer, got = threading.Event(), Sessions.answer, list[Any]()

    def waits(self: Sessions, prompt: Any, job: Any, apart: Any, reporter: Any, on_token: Any) -> Any:
        with reporter("scoring", 1) as progress:
            while not opened.wait(0.02):
                progress(0)
        return answer(self, prompt, job, apart, reporter, on_token)

    monkeypatch.setattr(Sessions, "answer", waits)
    with tool.serving(pair) as running:
        url = f"{running.url}/v1/chat/completions"
        asked = threading.Thread(target=lambda: got.append(web.post(url, json=HELLO | {"stream": stream})))
        asked.start()
        tool.until(lambda: running.worker.state["running"] == 1)
        time.sleep(0.4)  # until headers of a stream are sent
        start = time.monotonic()
        running.server.handle_exit(signal.SIGINT, None)
        told = capfd.readouterr().err
        if signals == 2:
            running.server.handle_exit(signal.SIGINT, None)
        else:
            opened.set()
        asked.join(5)
    assert time.monotonic() - start < 4
    assert told == "sp: stopping; 1 request may take up to 5 s to end; press Ctrl-C again to end at once\n"
    assert capfd.readouterr().err == ""
    (reply,) = got
    assert reply.status_code == (503 if signals == 2 and not stream else 200)
    assert ("the server is stopping" in reply.text) == (signals == 2)


def test_a_server_whose_standard_error_is_closed_ends_too(pair: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line about requests that have not ended cannot be written; the signal is obeyed all the same."""
    opened, answer = threading.Event(), Sessions.answer

    def waits(*arguments: Any) -> Any:
        opened.wait(30)
        return answer(*arguments)

    class Closed:
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(Sessions, "answer", waits)
    with tool.serving(pair) as running:
        asked = threading.Thread(target=lambda: web.post(f"{running.url}/v1/chat/completions", json=HELLO))
        asked.start()
        tool.until(lambda: running.worker.state["running"] == 1)
        with monkeypatch.context() as patch:
            patch.setattr("sys.stderr", Closed())
            running.server.handle_exit(signal.SIGTERM, None)
        assert running.server.should_exit
        opened.set()
        asked.join(10)
    assert not asked.is_alive()
