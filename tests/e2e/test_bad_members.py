"""A known member of the wrong type or range is an error that names it; unknown ones are ignored; nothing is executed."""
from harness import Folder, Server, check, finish

MESSAGE = {"role": "user", "content": "hi"}
BAD = [
    ("chat", {}, "messages"),
    ("chat", {"messages": []}, "messages"),
    ("chat", {"messages": "hi"}, "messages"),
    ("chat", {"messages": [MESSAGE, 5]}, "messages[1]"),
    ("chat", {"messages": [{"role": "user"}]}, "messages[0].content"),
    ("chat", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ("chat", {"messages": [{"role": "assistant", "content": "x"}]}, "messages[0].role"),
    ("chat", {"messages": [{"content": "x", "time": "soon"}]}, "messages[0].time"),
    ("chat", {"messages": [{"content": "x", "ref": "r" * 257}]}, "messages[0].ref"),
    ("chat", {"messages": [MESSAGE], "session": ""}, "session"),
    ("chat", {"messages": [MESSAGE], "session": "s" * 129}, "session"),
    ("chat", {"messages": [MESSAGE], "max_tokens": 0}, "max_tokens"),
    ("chat", {"messages": [MESSAGE], "max_tokens": "5"}, "max_tokens"),
    ("chat", {"messages": [MESSAGE], "temperature": -1}, "temperature"),
    ("chat", {"messages": [MESSAGE], "top_p": 2}, "top_p"),
    ("chat", {"messages": [MESSAGE], "seed": 2 ** 53 + 1}, "seed"),
    ("chat", {"messages": [MESSAGE], "stop": [1]}, "stop[0]"),
    ("chat", {"messages": [MESSAGE], "store": "yes"}, "store"),
    ("chat", {"messages": [MESSAGE], "recall": "some"}, "recall"),
    ("ingest", {"messages": [MESSAGE]}, "session"),
    ("match", {"session": "s"}, "text"),
    ("session.create", {"session": "s", "ttl_s": -1}, "ttl_s"),
    ("session.list", {"limit": 0}, "limit"),
    ("cancel", {}, "target"),
]

with Folder() as folder, Server(folder) as server:
    c = server.client()
    for op, members, param in BAD:
        a = c.ask(op, **members)
        good = a["event"] == "error" and a.get("code") == "bad_request" and a.get("param") == param and param in a["message"]
        check(f"{op}: {param}", good, a)
    a = c.ask("dance")
    check("an unknown operation", a["event"] == "error" and a["code"] == "unknown_op" and a["param"] == "op", a)
    a = c.ask("ping", shoe_size=43, nested={"a": [2 ** 70]})
    check("unknown members are ignored", a["event"] == "done", a)
    for op, members in (("session.get", {}), ("session.erase", {}), ("episode.list", {}), ("match", {"text": "x"})):
        a = c.ask(op, session="nobody", **members)
        check(f"{op} of a session that does not exist", a["event"] == "error" and a["code"] == "session_not_found", a)
    a = c.ask("session.list")
    check("nothing was made by all that", a["event"] == "done" and a["sessions"] == [], a)
finish()
