"""The scripted RTSP server does as it is told; a raw socket is the client."""

from __future__ import annotations

import contextlib
import hashlib
import math
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.lab import rtp
from tests.lab.leaks import no_leak
from tests.lab.rtsp_login import Login
from tests.lab.scripted_rtsp import SILENT, Answer, Connection, Request, ScriptedRtsp

SDP = rtp.sdp("h264")


class Client:
    """The simplest client: sends a request, reads an answer and interleaved packets."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10.0)
        self.cseq = 0
        self.buffer = b""

    def read(self, count: int) -> bytes:
        while len(self.buffer) < count:
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.buffer += data
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        return taken

    def packet(self) -> tuple[int, bytes]:
        dollar, channel, length = struct.unpack("!BBH", self.read(4))
        assert dollar == 0x24
        return channel, self.read(length)

    def ask(self, method: str, url: str = "rtsp://x/y", **headers: str) -> tuple[int, str, bytes]:
        """Status, the head as text, the body."""
        self.cseq += 1
        lines = [f"{method} {url} RTSP/1.0", f"CSeq: {self.cseq}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        return self.answer()

    def answer(self) -> tuple[int, str, bytes]:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.read(1)
        text = head.decode()
        length = 0
        for line in text.split("\r\n"):
            if line.lower().startswith("content-length:"):
                length = int(line.partition(":")[2])
        return int(text.split(" ")[1]), text, self.read(length)


@contextlib.contextmanager
def client_of(server: ScriptedRtsp) -> Iterator[Client]:
    client = Client(server.port)
    with client.socket:
        yield client


def set_up(client: Client) -> None:
    assert client.ask("SETUP", Transport="RTP/AVP/TCP;unicast;interleaved=4-5")[0] == 200
    assert client.ask("PLAY")[0] == 200


def test_a_session_as_usual_and_all_of_it_kept() -> None:
    pushed = [rtp.rtp_packet(bytes([number]), number, 0) for number in range(3)]

    def push(connection: Connection) -> None:
        for packet in pushed:
            connection.send_rtp(packet)
        connection.send_rtcp(rtp.sender_report(0.0, 7))
        connection.send_rtp(b"other", channel=9)

    with no_leak(), ScriptedRtsp(SDP, on_play=push) as server, client_of(server) as client:
        assert "GET_PARAMETER" in client.ask("OPTIONS")[1]
        status, head, body = client.ask("DESCRIBE", server.url, Accept="application/sdp")
        assert (status, body.decode()) == (200, SDP)
        assert "CSeq: 2\r\n" in head and f"Content-Base: {server.url}/" in head
        status, head, _ = client.ask("SETUP", Transport="RTP/AVP/TCP;unicast;interleaved=4-5")
        assert "interleaved=4-5" in head and "Session: lab-4711;timeout=60" in head
        assert client.ask("PLAY", Session="lab-4711")[0] == 200
        assert [client.packet() for _ in range(3)] == [(4, packet) for packet in pushed]
        channel, report = client.packet()
        assert channel == 5 and struct.unpack_from("!I", report, 16)[0] == 7
        assert struct.unpack_from("!I", report, 8)[0] == rtp.NTP_EPOCH_S
        assert client.packet() == (9, b"other")
        client.socket.sendall(struct.pack("!BBH", 0x24, 5, 3) + b"abc")
        assert client.ask("GET_PARAMETER")[0] == 200
        assert client.ask("DANCE")[0] == 501
        assert client.ask("TEARDOWN")[0] == 200
        assert server.connections[0].received == [(5, b"abc")]
        assert server.connections[0].over.is_set()
    assert server.asked("DESCRIBE")[0].headers["accept"] == "application/sdp"
    assert server.wait_request("DANCE").url == "rtsp://x/y"
    assert [one.connection for one in server.requests] == [0] * 7


def test_udp_is_refused() -> None:
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        assert client.ask("SETUP", Transport="RTP/AVP;unicast;client_port=5000-5001")[0] == 461


def test_answers_by_script_one_after_the_other_and_the_last_for_ever() -> None:
    with ScriptedRtsp(SDP) as server:

        def with_a_header(request: Request, connection: Connection) -> Answer:
            usual = server.usual(request, connection)
            return replace(usual, headers=[*usual.headers, ("X-Camera", "1")])

        moved = Answer(302, [("Location", "rtsp://elsewhere/")])
        server.on("DESCRIBE", moved, None, with_a_header)
        with client_of(server) as client:
            status, head, _ = client.ask("DESCRIBE")
            assert status == 302 and "Location: rtsp://elsewhere/" in head
            assert "X-Camera" not in client.ask("DESCRIBE")[1]
            assert "X-Camera: 1" in client.ask("DESCRIBE")[1]
            assert "X-Camera: 1" in client.ask("DESCRIBE")[1]


def test_raw_silent_and_final_answers() -> None:
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        server.on("OPTIONS", SILENT, Answer(raw=b"garbage", cuts=[1, 3], hang_up=True))
        client.socket.sendall(b"OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n" * 2)
        assert client.read(7) == b"garbage"
        with pytest.raises(EOFError):
            client.read(1)


@pytest.mark.parametrize("reset", [False, True])
def test_it_hangs_up(reset: bool) -> None:
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        client.ask("OPTIONS")
        server.connections[0].hang_up(reset)
        with pytest.raises(ConnectionResetError if reset else EOFError):
            client.read(1)


def test_writes_in_pieces_arrive_in_pieces() -> None:
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        client.ask("OPTIONS")
        pieces: list[bytes] = []
        reader = threading.Thread(target=lambda: pieces.extend(_pieces(client)))
        reader.start()
        server.connections[0].send(b"0123456789", cuts=[3, 4, 99, -1], pause_s=0.05)
        server.connections[0].hang_up()
        reader.join(10.0)
    assert b"".join(pieces) == b"0123456789"
    assert len(pieces) > 1


def _pieces(client: Client) -> Iterator[bytes]:
    while data := client.socket.recv(100):
        yield data


def test_a_clip_falls_silent_and_goes_on() -> None:
    clip = rtp.Coded("h264", [[b"\x65key"], [b"\x41one"]], [0.0, 0.001], 1000.0)
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        server.on_play = lambda one: one.play(clip, reports=False, first_timestamp=0)
        set_up(client)
        last = client.packet()[1]
        assert last[12:] == b"\x65key"
        server.connections[0].silent.set()
        client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):  # what was under way is read before
            while True:
                last = client.packet()[1]
        server.connections[0].silent.clear()
        client.socket.settimeout(10.0)
        packet = client.packet()[1]
    passed = [struct.unpack_from("!I", one, 4)[0] for one in (last, packet)]
    assert passed[1] - passed[0] > 0.02 * rtp.CLOCK_HZ  # time went on in silence


def test_a_client_that_does_not_read_holds_nothing_up() -> None:
    clip = rtp.Coded("h264", [[b"\x65" + bytes(60_000)]], [0.0], 30.0)
    with no_leak(), ScriptedRtsp(SDP) as server, client_of(server) as client:
        server.on_play = lambda one: one.play(clip, rtp.Packetiser("h264", 60_100), fps=math.inf)
        set_up(client)
        client.packet()


def test_losses_are_those_asked_for() -> None:
    clip = rtp.Coded("h264", [[b"\x65key"]], [0.0], 30.0)
    packetiser = rtp.Packetiser("h264", seq=0)
    with ScriptedRtsp(SDP) as server, client_of(server) as client:
        server.on_play = lambda one: one.play(
            clip, packetiser, 10, reports=False, lose=lambda number: number % 3 == 0, fps=math.inf
        )
        set_up(client)
        seqs = [struct.unpack_from("!H", client.packet()[1], 2)[0] for _ in range(6)]
    assert seqs == [1, 2, 4, 5, 7, 8]


def test_a_fault_in_a_script_is_the_test_s_fault() -> None:
    def broken(request: Request, connection: Connection) -> Answer:
        raise KeyError("typo")

    with pytest.raises(KeyError, match="typo"), ScriptedRtsp(SDP) as server:
        server.on("OPTIONS", broken)
        with client_of(server) as client, pytest.raises(EOFError):
            client.ask("OPTIONS")


def test_basic_login() -> None:
    login = Login("joe", "p:w", scheme="basic")
    with ScriptedRtsp(SDP, login) as server, client_of(server) as client:
        assert client.ask("OPTIONS")[0] == 200
        status, head, _ = client.ask("DESCRIBE")
        assert status == 401 and 'WWW-Authenticate: Basic realm="camera, 1st floor"' in head
        assert client.ask("DESCRIBE", Authorization="Basic am9lOnA6dw==")[0] == 200
        assert client.ask("DESCRIBE", Authorization="Basic am9lOnA6dx==")[0] == 401
        assert client.ask("DESCRIBE", Authorization="Digest am9lOnA6dw==")[0] == 401


@pytest.mark.parametrize("qop", [False, True])
@pytest.mark.parametrize("algorithm", [None, "MD5", "SHA-256"])
def test_digest_login(qop: bool, algorithm: str | None) -> None:
    login = Login("joe", "right", qop=qop, algorithm=algorithm, opaque="x")
    make = hashlib.sha256 if algorithm == "SHA-256" else hashlib.md5

    def header(password: str, method: str = "DESCRIBE") -> str:
        def h(text: str) -> str:
            return make(text.encode()).hexdigest()

        middle = login.nonce + (":00000001:abcd:auth" if qop else "")
        first = h(f"joe:{login.realm}:{password}")
        response = h(f"{first}:{middle}:{h(f'{method}:rtsp://x/y')}")
        text = f'Digest username="joe", realm="{login.realm}", nonce="{login.nonce}", '
        text += f'uri="rtsp://x/y", response="{response}", opaque="x"'
        return text + (', qop=auth, nc=00000001, cnonce="abcd"' if qop else "")

    with ScriptedRtsp(SDP, login) as server, client_of(server) as client:
        head = client.ask("DESCRIBE")[1]
        assert ('qop="auth,auth-int"' in head) is qop
        assert client.ask("DESCRIBE", Authorization=header("right"))[0] == 200
        assert client.ask("DESCRIBE", Authorization=header("wrong"))[0] == 401
        assert client.ask("DESCRIBE", Authorization=header("right", "PLAY"))[0] == 401
