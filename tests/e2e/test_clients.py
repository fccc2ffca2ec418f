"""Clients as they come: two hundred at once, more than the queue takes, cancelling, half-closing, vanishing."""
import socket
import time

from harness import Folder, Server, check, finish

STORY = [{"role": "user", "content": "Write a very long story about a lighthouse keeper and the sea."}]
LONG = {"messages": STORY, "max_tokens": 900, "temperature": 0, "store": False}


def until(condition, limit_s=30):
    end = time.time() + limit_s
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def hundreds(server):
    clients = [server.client() for _ in range(200)]
    for c in clients:
        c.request("ping")
    check("200 connections are served", all(c.event()["event"] == "done" for c in clients))
    for c in clients[:3]:
        c.request("chat", messages=[{"content": "Say hello."}], max_tokens=4, temperature=0)
    ends = [c.wait(c.last_id) for c in clients[:3]]
    check("some chat meanwhile", all(e["event"] == "done" and e["usage"]["completion_tokens"] <= 4 for e in ends), ends)
    for c in clients:
        c.close()


def cancel_and_wait(client, target):
    client.request("cancel", target=target)
    return client.wait(target).get("finish_reason")


def cancelling(server):
    c = server.client()
    one, two = c.request("chat", **LONG), c.request("chat", **LONG)
    while c.event()["event"] != "token":
        pass
    cancel = c.request("cancel", target=one)
    ends = {}
    while len(ends) < 2:
        e = c.event()
        if e["event"] in ("done", "error"):
            ends[e["id"]] = e
    check("cancel is acknowledged", ends.get(cancel, {}).get("cancelled") is True, ends)
    check("its target ends as cancelled", ends.get(one, {}).get("finish_reason") == "cancelled", ends)
    check("with a part of the text", 0 < len(ends.get(one, {}).get("text", "")) < 2000, ends)
    check("the other one goes on", any(c.event()["id"] == two for _ in range(3)))
    check("what is over cannot be cancelled", c.ask("cancel", target=one).get("cancelled") is False)
    check("nor what never was", c.ask("cancel", target="nothing").get("cancelled") is False)
    check("the other one can be, and has ended", cancel_and_wait(c, two) == "cancelled")
    c.close()


def vanishing(server):
    before = server.client().ask("stats")["cancelled"]
    c = server.client()
    c.request("chat", **LONG)
    while c.event()["event"] != "token":
        pass
    c.close()
    watch = server.client()
    gone = until(lambda: watch.ask("stats")["cancelled"] > before)
    check("the work of a client that vanishes stops", gone, watch.ask("stats"))
    watch.close()


def half_closing(server):
    c = server.client()
    c.request("chat", messages=[{"content": "Count to five."}], max_tokens=30, temperature=0)
    c.send(b'{"id":"last","op":"ping"}')  # the stream's end is a line's end
    c.socket.shutdown(socket.SHUT_WR)
    ends = {}
    while True:
        e = c.event()
        if e["event"] == "closed":
            break
        if e["event"] in ("done", "error"):
            ends[e["id"]] = e
    check("after FIN pending answers are delivered", set(ends) == {1, "last"} and ends[1]["finish_reason"] != "cancelled", ends)


def busy():
    with Folder() as folder, Server(folder, "--queue", "2", "--parallel", "1") as server:
        c = server.client()
        ids = [c.request("chat", **{**LONG, "max_tokens": 60}) for _ in range(12)]
        ends = {}
        while len(ends) < len(ids):
            e = c.event()
            if e["event"] in ("done", "error"):
                ends[e["id"]] = e
        refused = [e for e in ends.values() if e["event"] == "error"]
        check("past the queue it is busy", 1 <= len(refused) < 12 and all(e["code"] == "busy" for e in refused), refused[:2])
        check("and says when to come back", all(e.get("retry_after_ms", 0) > 0 for e in refused), refused[:2])
        check("the others are answered", all(e.get("finish_reason") for e in ends.values() if e["event"] == "done"))
        check("later it is not", c.chat("Hello", max_tokens=2)["event"] == "done")
        c.close()


with Folder() as folder, Server(folder) as server:
    hundreds(server)
    cancelling(server)
    vanishing(server)
    half_closing(server)
    check("the server is well", server.client().ask("ping")["event"] == "done")
busy()
finish()
