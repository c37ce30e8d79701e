"""The laboratory's TCP and HTTP servers do as they say, and leave nothing behind."""

from __future__ import annotations

import base64
import itertools
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import av
import pytest

from tests.lab import clips
from tests.lab.leaks import no_leak
from tests.lab.servers import (
    Relay,
    babbling_server,
    endless_header_server,
    endless_headers_server,
    hanging_up_server,
    http_status,
    mjpeg_server,
    mpegts_server,
    refusing_port,
    serving,
    silent_server,
    tcp_stream,
)


def connect(port: int, timeout_s: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout_s)


def read(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := client.recv(count - len(data))):
        data += part
    return data


def test_a_silent_server_says_nothing_to_anybody() -> None:
    with no_leak(), silent_server() as port, connect(port, 0.2) as one, connect(port) as two:
        one.sendall(b"OPTIONS * RTSP/1.0\r\n\r\n")
        two.close()
        with pytest.raises(TimeoutError):
            one.recv(1)


def test_a_babbling_server_babbles_for_ever() -> None:
    with no_leak(), babbling_server(b"head", b"abc") as port:
        with connect(port) as reading, connect(port):  # the other does not read
            assert read(reading, 4 + 30) == b"head" + b"abc" * 10
    with no_leak(), babbling_server() as port, connect(port) as client:
        assert len(set(read(client, 200_000))) == 256


@pytest.mark.parametrize("scheme", ["RTSP", "HTTP"])
def test_headers_without_an_end(scheme: str) -> None:
    with no_leak(), endless_header_server(scheme) as port, connect(port) as client:
        data = read(client, 300_000)
        assert data.startswith(f"{scheme}/1.0 200 OK\r\n".encode())
        assert data.count(b"\n") == 1
    with no_leak(), endless_headers_server(scheme) as port, connect(port) as client:
        data = read(client, 300_000)
        assert data.count(b"\r\n") > 10_000
        assert b"\r\n\r\n" not in data


def test_a_server_that_hangs_up_and_one_that_is_not_there() -> None:
    with no_leak(), hanging_up_server() as port, connect(port) as client:
        assert client.recv(1) == b""
    with no_leak(), pytest.raises(ConnectionRefusedError):
        connect(refusing_port())


def test_a_relay_carries_freezes_and_cuts() -> None:
    def echo(client: socket.socket, over: threading.Event) -> None:
        while not over.is_set():
            try:
                data = client.recv(100)
            except TimeoutError:
                continue
            if not data:
                return
            client.sendall(data)

    with no_leak(), serving(echo, "echo") as port, Relay(port) as relay:
        with connect(relay.port) as client:
            client.sendall(b"one")
            assert read(client, 3) == b"one"
            relay.frozen.set()
            client.sendall(b"two")
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(3)
            relay.frozen.clear()
            client.settimeout(5.0)
            assert read(client, 3) == b"two"
            relay.cut()
            assert client.recv(1) == b""
        assert relay.connections == 1


def test_mjpeg_with_and_without_a_login() -> None:
    pictures = [b"\xff\xd8one\xff\xd9", b"\xff\xd8two\xff\xd9"]
    with no_leak(), mjpeg_server(pictures, 100.0, stop_after=3, then="close") as url:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            assert answer.headers["Content-Type"] == "multipart/x-mixed-replace; boundary=next"
            data = answer.read()
        assert data.count(b"--next") == 3 and data.count(b"one") == 2
    with no_leak(), mjpeg_server(pictures, user="joe", password="right") as url:
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(url, timeout=5.0)
        refused.value.close()
        login = "Basic " + base64.b64encode(b"joe:right").decode()
        request = urllib.request.Request(url, headers={"Authorization": login})
        with urllib.request.urlopen(request, timeout=5.0) as answer:
            assert answer.read(6) == b"--next"


@pytest.mark.parametrize("status", [401, 403, 404, 500, 503])
def test_http_refusals_are_counted(status: int) -> None:
    with no_leak(), http_status(status) as asked:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match=str(status)) as refused:
                urllib.request.urlopen(asked.url, timeout=5.0)
            refused.value.close()
        assert asked.paths == ["/video", "/video"] and not asked.logins
        request = urllib.request.Request(asked.url, headers={"Authorization": "Basic x"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=5.0)
        refused.value.close()
        assert asked.logins == ["Basic x"]


def test_an_http_redirect_leads_elsewhere() -> None:
    with no_leak(), mjpeg_server([b"x"]) as url, http_status(302, url) as asked:
        with urllib.request.urlopen(asked.url, timeout=5.0) as answer:
            assert answer.url == url


def test_a_transport_stream_over_http_and_tcp_comes_in_real_time(tmp_path: Path) -> None:
    clip = clips.write(tmp_path / "a.ts", frames=30)
    with no_leak():
        with mpegts_server(clip, 0.5) as asked, av.open(asked.url, timeout=5.0) as container:
            assert container.duration is None
            # The connection stays open, and silent by then.
            assert len(list(itertools.islice(container.decode(video=0), 20))) == 20
        with mpegts_server(clip, 0.5, then="close") as asked:
            with urllib.request.urlopen(asked.url, timeout=5.0) as answer:
                assert answer.read() == clip.read_bytes()
        with tcp_stream(clip, 0.5) as url, av.open(url, timeout=5.0) as container:
            assert len(list(container.decode(video=0))) == 30


def test_a_leak_is_seen() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="left-behind")
    with pytest.raises(AssertionError, match="left-behind"), no_leak(0.1):
        thread.start()
    over.set()
    thread.join()
    with pytest.raises(AssertionError, match=r"fd .*socket"), no_leak(0.1):
        kept = socket.socket()
    kept.close()
