"""Pages are for their own tabs: what another site asks for in the same browser is refused."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync import client

from browsing import Served
from protofed_lab.guard import OwnPages, known_names

SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket&client_id=00000000-0000-0000-0000-000000000000"
POLLING = SOCKET.replace("websocket", "polling")


@pytest.fixture(scope="module", params=["ui", pytest.param("demo", marks=pytest.mark.slow)])
def place(request, tmp_path_factory):
    """Host and port of either set of pages."""
    folder = tmp_path_factory.mktemp("runs")
    served = Served(["ui", str(folder)] if request.param == "ui" else ["demo"], folder, browser=False)
    yield urlsplit(served.address).netloc
    served.stop()


def ask(place, path="/", method="GET", **headers):
    with closing(http.client.HTTPConnection(place, timeout=60)) as connection:
        connection.request(method, path, headers={name.replace("_", "-"): v for name, v in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode(errors="replace")


def connect(place, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.connect(f"ws://{place}{SOCKET}", additional_headers=named, open_timeout=60)


def foreign(place):
    host, port = place.split(":")
    return [
        "http://evil.example",
        f"http://evil.example:{port}",
        f"https://{place}.evil.example",
        f"http://{host}",
        f"http://{host}:{int(port) - 1}",
        f"http://localhost:{port}",
        f"http://[::1]:{port}",
        "null",
        "file://",
        f"ftp://{place}",
        f"http://user@{place}",
        "",
    ]


@pytest.mark.slow
def test_web_sockets_of_other_sites_are_refused(place):
    for origin in foreign(place):
        with pytest.raises(InvalidStatus) as refused:
            connect(place, Origin=origin)
        assert refused.value.response.status_code == 403, origin


@pytest.mark.slow
def test_a_web_socket_of_our_own_is_accepted(place):
    for more in ({}, {"Sec_Fetch_Site": "same-origin"}):
        with connect(place, Origin=f"http://{place}", **more) as web_socket:
            greeting = web_socket.recv(timeout=60)
            assert "sid" in json.loads(greeting[1:])


def test_a_web_socket_by_another_name_is_refused(place):
    port = place.split(":")[1]
    for name in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}"):
        with pytest.raises(InvalidStatus) as refused:
            connect(place, Host=name, Origin=f"http://{name}")
        assert refused.value.response.status_code in (400, 403)  # 400: two names
        assert ask(place, Host=name)[0] == 403


def test_polling_and_pages_for_other_sites_are_refused(place):
    for path in ("/", POLLING, "/static/shell.js"):
        for origin in foreign(place):
            status, headers, text = ask(place, path, Origin=origin)
            assert (status, text) == (403, "refused: another site asks\n"), origin
            assert "access-control-allow-origin" not in headers
        for site in ("cross-site", "same-site", "same-origin, cross-site"):
            assert ask(place, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0] == 403
            assert (
                ask(place, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")[0] == 403
            )
        assert ask(place, path, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200
    assert ask(place, POLLING, method="POST", Origin="http://evil.example")[0] == 403
    assert ask(place, POLLING, method="OPTIONS", Origin="http://evil.example")[0] == 403


def test_a_link_from_elsewhere_opens_a_page(place):
    """Typed, opened by the command, or followed: but nobody shows it in a frame."""
    for site in ("none", "cross-site"):
        status, headers, _ = ask(
            place, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document", Sec_Fetch_User="?1"
        )
        assert status == 200
        assert headers["x-frame-options"] == "DENY"
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def refusal(host, own="127.0.0.1", local=True, **more):
    headers = [(b"host", host.encode())] + [(n.encode(), v.encode()) for n, v in more.items()]
    return OwnPages(None, known_names(own), local).refusal(headers, websocket=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["127.0.0.1:8520", "localhost:8520", "LOCALHOST", "[::1]:8520", "127.0.0.1"])
def test_names_of_this_machine(host):
    assert refusal(host) == ""
    assert refusal(host, origin=f"http://{host.lower()}") == ""
    assert refusal(host, origin="http://evil.example") == "another site asks"


OTHERS = "evil.example localhost.evil.example 10.0.0.1 0.0.0.0 a@localhost localhost:x localhost:0 localhost:99999"
MISSHAPEN = ["", "[::1", "::", "127.0.0.1\x00", "local host", "localhost/", "localhost#a", "localhost?a"]


@pytest.mark.parametrize("host", [*OTHERS.split(), *MISSHAPEN])
def test_other_names(host):
    assert refusal(host) == "these pages are not served under that name"


def test_two_names_or_none():
    guard = OwnPages(None, known_names("127.0.0.1"), True)  # type: ignore[arg-type]
    assert guard.refusal([], websocket=False)
    assert guard.refusal([(b"host", b"localhost"), (b"host", b"evil.example")], websocket=False)
    origins = [(b"origin", b"http://localhost"), (b"origin", b"http://evil.example")]
    assert guard.refusal([(b"host", b"localhost"), *origins], websocket=False)


@pytest.mark.slow
def test_pages_for_others_have_numbers_and_this_machines_names(monkeypatch):
    import socket

    monkeypatch.setattr(socket, "gethostname", lambda: "Lab-7")
    monkeypatch.setattr(socket, "getfqdn", lambda: "lab-7.example.org")
    for host in ("192.168.1.5:8520", "lab-7:8520", "lab-7.example.org", "localhost:8520", "[fe80::1]:8520"):
        assert refusal(host, own="0.0.0.0", local=False) == ""
    assert refusal("evil.example:8520", own="0.0.0.0", local=False)
    assert refusal("pages.example.org", own="pages.example.org", local=False) == ""
