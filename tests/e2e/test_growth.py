"""A conversation that grows turn by turn and is interrupted at 40 % is the same session as one ingested at once: the same
episodes, the same match, the same answer."""
import json
import os

from harness import ROOT, Folder, Server, check, finish

with open(os.path.join(ROOT, "docs", "demo", "conversation.jsonl"), encoding="utf-8") as f:
    MESSAGES = [json.loads(line) for line in f][:50]
QUESTION = "What is the number of the allotment plot?"


def ingest(client, session, messages):
    done = client.ask("ingest", session=session, messages=messages)
    return done["event"] == "done" and done["turns"] == len(messages)


def main():
    cut = len(MESSAGES) * 4 // 10
    with Folder() as folder:
        with Server(folder) as server:
            client = server.client(600)
            check("turn by turn up to 40 %", all(ingest(client, "grown", [m]) for m in MESSAGES[:cut]))
            server.kill()
        with Server(folder) as server:
            client = server.client(600)
            check("and on after the restart", all(ingest(client, "grown", [m]) for m in MESSAGES[cut:]))
            check("at once", ingest(client, "whole", MESSAGES))
            sessions = ("grown", "whole")
            episodes = [client.ask("episode.list", session=s)["episodes"] for s in sessions]
            check("the same episodes, and several", episodes[0] == episodes[1] and len(episodes[0]) > 2, episodes)
            matches = [client.ask("match", session=s, text=QUESTION, budget=200) for s in sessions]
            for member in ("used", "unused", "best_score", "recalled_tokens"):
                check(f"the same {member}", matches[0][member] == matches[1][member] and matches[0][member],
                      [m[member] for m in matches])
            check("every candidate says why", all(h["why"] == "used" for h in matches[0]["used"]) and
                  all(h["why"] not in ("", "used") for h in matches[0]["unused"]), matches[0])
            answers = [client.chat(QUESTION, session=s, store=False, max_tokens=12, recall=200) for s in sessions]
            check("the same answer", answers[0]["text"] == answers[1]["text"] and answers[0]["text"], answers)
            check("decoded on the same rows", answers[0]["memory"]["used"] == answers[1]["memory"]["used"], answers)
    finish()


main()
