"""A question that nothing stored is about recalls nothing, says so, and costs what a first turn costs."""
import json
import os

from harness import ROOT, Folder, Server, check, finish

DATA = os.path.join(ROOT, "tests", "data", "nothing_relevant")
TOPICS = {"garden": "tomato", "car": "brake", "trip": "vienna", "music": "cello"}


def lines(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as f:
        return [json.loads(x) for x in f]


def related(q, found):
    used = [e for e in found["episodes"] if e["used"]]
    check(f'"{q["text"]}" recalls {q["recall"]}', used and TOPICS[q["recall"]] in json.dumps(used[0]).lower(), found)
    check("its best message is over the floor", found["used"] and found["used"][0]["score"] >= found["floor"], found)
    return found["best_score"]


def unrelated(client, q, found):
    check(f'"{q["text"]}" recalls nothing', not found["used"] and not any(e["used"] for e in found["episodes"]), found)
    check("the scores are still told", -1 <= found["best_score"] < found["floor"], found)
    turn = client.chat(q["text"], session="talk", max_tokens=4, store=False)
    check("the answer is decoded without memory", turn["memory"]["episodes"] == [] and turn["memory"]["used"] == [], turn)
    check("and says why", turn["memory"]["miss_reason"] == "nothing_relevant", turn)
    check("and recalls no tokens", turn["memory"]["recalled_tokens"] == 0, turn)
    return found["best_score"]


with Folder() as folder, Server(folder) as server:
    c = server.client()
    done = c.ask("ingest", session="talk", messages=lines("transcript.ndjson"))
    check("the transcript is stored", done["event"] == "done" and done["turns"] == 16, done)
    yes, no = [], []
    for query in lines("queries.jsonl"):
        answer = c.ask("match", session="talk", text=query["text"])
        if query["recall"]:
            yes.append(related(query, answer))
        else:
            no.append(unrelated(c, query, answer))
    print("best scores: related", yes, "unrelated", no)
    check("related and unrelated lie apart", min(yes) > max(no), (yes, no))
    check("nothing was stored by asking", c.ask("session.get", session="talk")["turns"] == 16)
finish()
