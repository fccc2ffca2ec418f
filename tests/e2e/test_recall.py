"""A session past its plain limit: old facts are recalled, the answer survives a restart, chopping of the ingest changes
nothing, and another session knows nothing of it."""
import json
import os

from harness import ROOT, Folder, Server, check, finish

MESSAGES = [json.loads(line) for line in open(os.path.join(ROOT, "docs", "demo", "conversation.jsonl"), encoding="utf-8")][:260]
QUESTION = "Which food is the dog Pixel allergic to?"


def ask(client, session, **members):
    return client.chat(QUESTION, session=session, store=False, max_tokens=16, **members)


def main():
    with Folder() as folder:
        with Server(folder) as server:
            client = server.client(600)
            done = client.ask("ingest", session="whole", messages=MESSAGES)
            check("ingested whole", done["event"] == "done" and done["turns"] == len(MESSAGES), done)
            for start in range(0, len(MESSAGES), 37):
                done = client.ask("ingest", session="chopped", messages=MESSAGES[start:start + 37])
                check("ingested a part", done["event"] == "done", done)
            whole, chopped = ask(client, "whole"), ask(client, "chopped")
            check("recalled rows are attended", whole["memory"]["recalled_tokens"] > 100, whole)
            check("the answer says chicken", "chicken" in whole["text"], whole["text"])
            check("the evidence is among the used", {"m181", "m188"} & {u["ref"] for u in whole["memory"]["used"]}
                  or any(MESSAGES[u["turn"] - 1]["content"].find("chicken") >= 0 for u in whole["memory"]["used"]),
                  whole["memory"]["used"])
            for member in ("text", "usage"):
                check(f"chopped ingest, same {member}", whole[member] == chopped[member], (whole[member], chopped[member]))
            check("chopped ingest, same utterances used", whole["memory"]["used"] == chopped["memory"]["used"])
            a, b = (client.ask("episode.list", session=s)["episodes"] for s in ("whole", "chopped"))
            check("chopped ingest, same episodes", a == b)
            off = ask(client, "whole", recall="off")
            check("recall off attends to nothing old", off["memory"]["recalled_tokens"] == 0 and not off["memory"]["used"], off)
            other = client.chat(QUESTION, session="other", store=False, max_tokens=16)
            check("another session has no memory", other["memory"]["recalled_tokens"] == 0 and
                  other["usage"]["prompt_tokens"] < 60, other)
            again = client.chat("And what is its name?", session="whole", max_tokens=8)
            check("a stored turn goes on", again["event"] == "done" and again["turn"] == len(MESSAGES) + 2, again)
            before = ask(client, "whole")
            server.kill()
        with Server(folder) as server:
            client = server.client(600)
            after = ask(client, "whole")
            check("the same answer after kill -9", after["text"] == before["text"], (before["text"], after["text"]))
            check("from the store", after["timing"]["computed_tokens"] < 60, after["timing"])
            check("the same utterances", after["memory"]["used"] == before["memory"]["used"])
            check("nothing was rebuilt", client.ask("stats")["rebuilt_tokens"] == 0)
            erased = client.ask("session.erase", session="whole")
            check("erased", erased["event"] == "done" and erased["turns"] == len(MESSAGES) + 2, erased)
            gone = client.ask("match", session="whole", text=QUESTION)
            check("and gone", gone.get("code") == "session_not_found", gone)
    finish()


main()
