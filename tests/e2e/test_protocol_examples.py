"""Runs the examples of docs/protocol.md, in order, against a live server: same ids, events and codes, and members of the
same names and types, no more and no fewer."""
import json
import os
import re

from harness import ROOT, Folder, Server, check, finish

OPERATIONS = {"hello", "ping", "chat", "ingest", "match", "session.create", "session.get", "session.list", "session.erase",
              "episode.list", "stats", "cancel"}


def examples():
    """Lists of (lines sent, events expected), one per block."""
    text = open(os.path.join(ROOT, "docs", "protocol.md"), encoding="utf-8").read()
    for block in re.findall(r"```text\n(.*?)```", text, re.S):
        lines = block.strip().split("\n")
        yield [x[2:] for x in lines if x.startswith("> ")], [json.loads(x[2:]) for x in lines if x.startswith("< ")]


def kind(value):
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def differences(want, got, where=""):
    """Members of other names or types. null stands for any type; of lists the first items are compared."""
    if want is None or got is None:
        return []
    if kind(want) != kind(got):
        return [f"{where}: {kind(got)}, not {kind(want)}"]
    if isinstance(want, list):
        return differences(want[0], got[0], where + "[0]") if want and got else []
    if not isinstance(want, dict):
        return []
    out = [f"{where}.{name}: missing" for name in want.keys() - got.keys()]
    out += [f"{where}.{name}: not documented" for name in got.keys() - want.keys()]
    for name in want.keys() & got.keys():
        out += differences(want[name], got[name], f"{where}.{name}")
    return out


def fixed(event):
    """What must be equal."""
    return event.get("id"), event["event"], event.get("code"), event.get("param")


def run(client, sent, expected):
    client.send(("\n".join(sent) + "\n").encode())
    events, ends = [], 0
    while ends < len(sent):
        events.append(client.event())
        ends += events[-1]["event"] not in ("token", "progress")
    name = sent[-1][:60]
    last = [e for e in expected if e["event"] in ("done", "error")]
    got = {str(e["id"]): e for e in events if e["event"] not in ("token", "progress")}
    check(f"{name}: the last events", sorted(map(str, map(fixed, last))) == sorted(map(str, map(fixed, got.values()))), got)
    for want in last:
        wrong = differences(want, got.get(str(want["id"]), {}))
        check(f"{name}: members of {want['event']}", not wrong, wrong)
    shapes = {e["event"]: e for e in expected if e["event"] in ("token", "progress")}
    for e in events:
        if e["event"] in shapes:
            wrong = differences(shapes[e["event"]], e)
            if wrong:
                check(f"{name}: members of {e['event']}", False, wrong)
    if "token" in shapes:
        text = "".join(e["text"] for e in events if e["event"] == "token")
        check(f"{name}: the tokens are the text", text == events[-1]["text"] and text, (text, events[-1]))


seen = set()
with Folder() as folder, Server(folder) as server:
    c = server.client()
    for sent, expected in examples():
        run(c, sent, expected)
        seen |= set(re.findall(r'"op":"([a-z.]+)"', "\n".join(sent)))
check("every operation has an example", OPERATIONS <= seen, OPERATIONS - seen)
finish()
