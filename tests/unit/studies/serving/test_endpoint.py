"""The endpoint over real HTTP: streams, whole answers, metrics, and every way in which a request goes wrong."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoint import LONGEST, Held, endpoint, settles, until

from windtunnel.errors import SpecError
from windtunnel.http_guard import bound_socket
from windtunnel.studies.serving.emulator.engine import Loss
from windtunnel.studies.serving.emulator.listen import parsed_address, parsed_losses

ASK = {"model": "tiny", "prompt": "tell me something", "max_tokens": 12}


def _chunks(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_streams_whole_answers_models_and_metrics() -> None:
    with endpoint() as (address, engine), httpx.Client(base_url=address) as client:
        whole = client.post("/v1/completions", json=ASK).json()
        assert whole["usage"] == {**whole["usage"], "prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
        assert len(whole["choices"][0]["text"].split()) == 12
        assert whole["choices"][0]["finish_reason"] == "length"
        body = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
        chunks = _chunks(client.post("/v1/completions", json=body).text)
        assert len(chunks) == 13
        assert chunks[-1]["usage"]["completion_tokens"] == 12
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * 11 + ["length"]
        chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "stream": True}
        deltas = [
            chunk["choices"][0]["delta"] for chunk in _chunks(client.post("/v1/chat/completions", json=chat).text)
        ]
        assert deltas[0]["role"] == "assistant"
        assert all(delta["content"] for delta in deltas)
        assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["tiny"]
        assert client.get("/v1/models/tiny").json()["max_model_len"] == LONGEST
        assert client.get("/health").status_code == 200
        text = client.get("/metrics").text
        for name in ("num_requests_running", "kv_cache_usage_perc", "time_to_first_token_seconds_bucket"):
            assert f"vllm:{name}{{" in text
        assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 27' in text
        assert 'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 3' in text
        assert 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",num_gpu_blocks="500"' in text
        parts = [_sum(text, f"request_{name}_time_seconds") for name in ("prefill", "decode", "inference")]
        assert parts[0] + parts[1] == pytest.approx(parts[2])
        assert parts[2] + _sum(text, "request_queue_time_seconds") == pytest.approx(
            _sum(text, "e2e_request_latency_seconds")
        )
        assert client.post("/tokenize", json={"model": "tiny", "prompt": "tell me something"}).json()["count"] == 5
        assert settles(engine)


def _sum(text: str, metric: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"vllm:{metric}_sum"))


def test_an_answer_in_json_is_an_object_whole_and_in_pieces() -> None:
    with endpoint() as (address, _), httpx.Client(base_url=address) as client:
        body = {**ASK, "response_format": {"type": "json_object"}}
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        pieces = [
            chunk["choices"][0]["text"]
            for chunk in _chunks(client.post("/v1/completions", json={**body, "stream": True}).text)
        ]
        assert len(pieces) == 12
        for text in (whole, "".join(pieces)):
            assert len(json.loads(text)["text"].split()) == 12


def test_answers_have_the_drawn_length_unless_told() -> None:
    with endpoint(draw=lambda: 5) as (address, _), httpx.Client(base_url=address) as client:

        def ended(**more: Any) -> tuple[int, str]:
            found = client.post("/v1/completions", json={**ASK, **more}).json()
            return found["usage"]["completion_tokens"], found["choices"][0]["finish_reason"]

        assert ended() == (5, "stop")
        assert ended(max_tokens=4) == (4, "length")
        assert ended(min_tokens=9) == (9, "stop")
        assert ended(ignore_eos=True) == (12, "length")


def test_every_error_is_the_apis_own(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("not to be read")
    with endpoint() as (address, engine), httpx.Client(base_url=address) as client:
        bodies = [b"", b"{", b"\xff", b"null", json.dumps({**ASK, "model": "no"}).encode(), b"[" * 50_000]
        bodies.append(json.dumps({**ASK, "prompt": "x" * (5 * LONGEST)}).encode())
        found = [client.post("/v1/chat/completions", content=body) for body in bodies]
        found.append(client.post("/v1/completions", content=b" " * (9 << 20)))
        found += [client.get(path) for path in ("/", "/v1/models/../../etc/passwd", f"/{secret}", "/v1/files")]
        found += [client.get(f"/v1/models/{secret}"), client.delete("/v1/models"), client.get("/v1/completions")]
        assert [one.status_code for one in found] == [400] * 4 + [404] + [400] * 2 + [413] + [404] * 5 + [405] * 2
        for one in found:
            assert set(one.json()["error"]) == {"message", "type", "param", "code"}
            assert "not to be read" not in one.text
        assert client.post("/v1/completions", json=ASK).status_code == 200  # and it still serves
        assert settles(engine)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_frees_his_blocks(stream: bool) -> None:
    with endpoint(speed=1.0) as (address, engine):
        host, port = address[7:].split(":")
        lines = []
        for _ in range(6):
            raw = json.dumps({**ASK, "max_tokens": 3000, "stream": stream}).encode()
            line = socket.create_connection((host, int(port)))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(raw)}\r\n\r\n"
            line.sendall(head.encode() + raw)
            lines.append(line)
        if stream:
            assert all(line.recv(200).startswith(b"HTTP/1.1 200") for line in lines)
        else:
            until(lambda: len(engine.answers) == 6)
        for line in lines:
            line.close()
        assert settles(engine)  # long before 3,000 tokens of 8 ms
        assert engine.metrics.ended["abort"] == 6
        assert httpx.post(f"{address}/v1/completions", json=ASK).status_code == 200


def test_an_over_full_pool_queues_and_then_refuses() -> None:
    held = Held()
    with endpoint(speed=50.0, blocks=20, seqs=4, most_waiting=6, held=held) as (address, engine):

        def ask(place: int) -> httpx.Response:
            body = {**ASK, "prompt": [place] * 60, "max_tokens": 120}
            return httpx.post(f"{address}/v1/completions", json=body, timeout=60)

        with ThreadPoolExecutor(10) as pool:
            taken = [pool.submit(ask, place) for place in range(10)]
            until(lambda: len(engine.answers) >= 7 and engine.metrics.refused >= 3)  # the first runs, six wait
            assert ask(99).json()["error"]["type"] == "overloaded_error"
            held.go()
            found = [one.result() for one in taken]
        assert sorted(one.status_code for one in found) == [200] * 7 + [503] * 3
        answered = [one.json() for one in found if one.status_code == 200]
        assert all(one["usage"]["completion_tokens"] == 120 for one in answered)
        assert engine.metrics.refused == 4
        assert settles(engine)


def test_a_lost_replica_ends_its_requests_and_the_others_serve_on() -> None:
    held = Held()
    losses = [Loss(0, 4 * 10**9, 9 * 10**9)]  # answers take 29 simulated seconds
    with endpoint(replicas=2, losses=losses, held=held) as (address, engine):

        def ask(stream: bool) -> httpx.Response:
            body = {**ASK, "max_tokens": 3500, "stream": stream}
            return httpx.post(f"{address}/v1/completions", json=body, timeout=60)

        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(ask, stream) for stream in (True, True, False, False, True, False)]
            until(lambda: len(engine.answers) == 6)
            held.go()
            found = [one.result() for one in asked]
        lost = [one for one in found if "was lost" in one.text]
        assert len(lost) == engine.metrics.lost == engine.metrics.ended["error"] == 3
        for one in lost:
            if one.status_code == 200:  # a stream that had begun
                assert _chunks(one.text)[-1]["error"]["code"] == 503
            else:
                assert one.json()["error"]["code"] == 503
        assert sum(one.status_code == 200 and "was lost" not in one.text for one in found) == 3
        assert engine.fleet.able == [0, 1]  # it is back
        assert settles(engine)


def test_without_a_replica_nothing_is_served_and_health_says_so() -> None:
    with endpoint(losses=[Loss(0, 0, None)]) as (address, engine), httpx.Client(base_url=address) as client:
        until(lambda: not engine.fleet.able)
        assert client.get("/health").status_code == 503
        assert client.post("/v1/completions", json=ASK).json()["error"]["code"] == 503


def test_addresses_are_loopback_unless_told() -> None:
    assert parsed_address(":8000") == parsed_address("8000") == ("127.0.0.1", 8000)
    assert parsed_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert parsed_address("[::1]:9") == ("::1", 9)
    for text in ("", "host", "host:port", "1.2.3.4:99999", "http://x:1"):
        with pytest.raises(SpecError):
            parsed_address(text)
    with bound_socket("127.0.0.1", 0, "--listen") as bound, pytest.raises(SpecError, match="cannot be listened on"):
        bound_socket("127.0.0.1", bound.getsockname()[1], "--listen")


def test_losses_are_read() -> None:
    assert parsed_losses("0@30s, 1@2s+500ms", 2) == [Loss(0, 30 * 10**9, None), Loss(1, 2 * 10**9, 2_500_000_000)]
    assert parsed_losses(None, 1) == []
    for text in ("2@3s", "x", "0@", "0@3s+"):
        with pytest.raises(SpecError):
            parsed_losses(text, 2)
