"""Logins and session descriptions, as cameras write them."""

from __future__ import annotations

import base64
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab import rtsp_login
from vidserve.capture.rtsp import rtcp, sdp
from vidserve.capture.rtsp.login import Login

PASSWORD = 'p"a\\s, s:wörd'


@pytest.mark.parametrize("scheme", ["basic", "digest", "both"])
@pytest.mark.parametrize("algorithm", [None, "MD5", "SHA-256"])
@pytest.mark.parametrize("qop", [False, True])
def test_every_kind_of_login(
    scheme: Literal["basic", "digest", "both"], algorithm: str | None, qop: bool
) -> None:
    server = rtsp_login.Login(
        "joe", PASSWORD, scheme, algorithm=algorithm, qop=qop, opaque="o" if qop else None
    )
    login = Login("joe", PASSWORD)
    assert login.header("DESCRIBE", "rtsp://h/1") is None
    for values in (server.challenges(), [", ".join(server.challenges())]):
        assert login.challenge(values)
        for method in ("DESCRIBE", "SETUP", "PLAY"):
            header = login.header(method, "rtsp://h/1")
            assert header is not None and server.accepts(header, method)
            assert PASSWORD not in header
        assert login.is_basic is (scheme == "basic")
    wrong = Login("joe", "else")
    assert wrong.challenge(server.challenges())
    assert not server.accepts(wrong.header("PLAY", "rtsp://h/1"), "PLAY")


def test_the_example_of_the_rules() -> None:
    """RFC 2617 3.5, without the client's nonce: RFC 2069's form."""
    login = Login("Mufasa", "CircleOfLife")
    assert login.challenge(
        ['Digest realm="testrealm@host.com", nonce="dcd98b7102dd2f0e8b11d0f600bfb0c093"']
    )
    header = login.header("GET", "/dir/index.html")
    assert header is not None and 'response="1949323746fe6a43ef61f9606e7febea"' in header


def test_challenges_that_cannot_be_answered() -> None:
    login = Login("a", "b")
    for values in ([], ["Negotiate"], ['Digest realm="x"'], ["Digest nonce=1, algorithm=X-9"]):
        assert not login.challenge(values), values
    assert login.header("PLAY", "u") is None
    assert login.challenge(["Digest nonce=7, stale=TRUE"]) and login.stale


SETS = b"\0\0\0\1\x67\x42\0\0\0\1\x68\xce"
H264 = (
    "v=0\r\na=control:*\r\nm=audio 0 RTP/AVP 0\r\na=control:audio\r\nm=video 0 RTP/AVP 96\r\n"
    "b=AS:500\r\na=rtpmap:96 H264/90000\r\na=framerate:29.97\r\na=control:trackID=2\r\n"
    "a=fmtp:96 packetization-mode=1;profile-level-id=420029; sprop-parameter-sets="
)


def sprop(unit: bytes) -> str:
    return base64.b64encode(unit).decode()


@pytest.mark.parametrize(
    "written",
    [
        f"{sprop(bytes([0x67, 0x42]))},{sprop(bytes([0x68, 0xCE]))}",
        f"{sprop(bytes([0x67, 0x42])).rstrip('=')},{sprop(bytes([0x68, 0xCE]))}==",
        f"{sprop(SETS[:6])},{sprop(SETS[6:])},",  # with start codes inside
        f"{sprop(bytes([0x67, 0x42]))},!,{sprop(bytes([0x68, 0xCE]))};x",
    ],
)
def test_parameter_sets_however_they_are_written(written: str) -> None:
    control, (media,) = sdp.parse(H264 + written + "\r\n")
    assert control == "*"
    assert media.parameter_sets == SETS
    assert (media.codec, media.payload_type, media.clock_hz) == ("h264", 96, 90_000)
    assert media.fps == 29.97 and media.control == "trackID=2"


def test_h265_other_codecs_and_nonsense() -> None:
    text = (
        "m=video 0 RTP/AVP 26\nm=video 0 RTP/AVP 97\na=rtpmap:97 h265/90000\na=framerate:0\n"
        f"a=fmtp:97 sprop-sps={sprop(b'S')};sprop-vps={sprop(b'V')}; sprop-pps={sprop(b'P')}; "
        "sprop-max-don-diff=2\nm=video 9 RTP/AVP\nm=video x RTP/AVP y\nm=\n=\n"
    )
    control, tracks = sdp.parse(text)
    assert control == ""
    assert [track.encoding for track in tracks] == ["JPEG", "H265"]
    assert tracks[0].codec == "" and tracks[1].codec == "hevc"
    assert tracks[1].parameter_sets == b"\0\0\0\1V\0\0\0\1S\0\0\0\1P"
    assert tracks[1].numbered and tracks[1].fps is None


@given(st.text(max_size=400))
@settings(deadline=None)
def test_no_description_makes_it_crash(text: str) -> None:
    sdp.parse(text)
    sdp.parse("m=video 0 RTP/AVP 96\na=rtpmap:96 H264\na=fmtp:96 sprop-parameter-sets=" + text)


@pytest.mark.parametrize(
    ("base", "control", "url"),
    [
        ("rtsp://h/s", "trackID=1", "rtsp://h/s/trackID=1"),
        ("rtsp://h/s/", "trackID=1", "rtsp://h/s/trackID=1"),
        ("rtsp://h/cam?channel=1", "trackID=1", "rtsp://h/cam?channel=1/trackID=1"),
        ("rtsp://h/s", "*", "rtsp://h/s"),
        ("rtsp://h/s", "", "rtsp://h/s"),
        ("rtsp://h/s", "RTSP://other/x", "RTSP://other/x"),
        ("rtsp://h/s", "/t", "rtsp://h/s/t"),
    ],
)
def test_where_a_track_is_set_up(base: str, control: str, url: str) -> None:
    assert sdp.control_url(base, control) == url


def test_rtcp_says_the_senders_clock_and_is_answered() -> None:
    from tests.lab import rtp

    packet = rtp.sender_report(1_700_000_000.25, 12345) + rtp.goodbye()
    report = rtcp.parse(packet)
    assert report.ssrc == 0x1234ABCD and report.timestamp == 12345 and report.bye
    assert report.sender_wall_s == pytest.approx(1_700_000_000.25)
    answer = rtcp.receiver_report(1, 2, 70_000, 3, report.middle, 0.5)
    assert len(answer) % 4 == 0
    assert answer[1] == 201 and answer[-1] == 0
    again = rtcp.parse(answer)  # a well-formed compound packet: nothing is left over
    assert again.ssrc is None and not again.bye


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_no_rtcp_makes_it_crash(packet: bytes) -> None:
    rtcp.parse(packet)
    rtcp.parse(b"\x80\xc8" + packet)
