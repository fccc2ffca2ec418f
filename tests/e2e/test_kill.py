"""kill -9 at random moments of ingest and chat: every acknowledged message is there, check is clean, and in the end the
answer equals that of a run without interruptions. The seed is printed; KILLS and SEED choose another run."""
import os
import random
import threading
import time

from harness import Folder, Server, check, finish, run

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("SEED", "1"))


def message(i):
    topics = ["The boat has a new sail, number {}.", "Room {} got its curtains today.", "I read chapter {} of the sea book.",
              "Recipe {}: flour, water, salt and patience.", "The train at {} minutes past was late again."]
    return {"speaker": "Ada" if i % 2 else "Ben", "content": topics[i % 5].format(i), "ref": f"r{i}",
            "time": f"2025-{1 + i // 28 % 12:02d}-{1 + i % 28:02d}T10:00:00Z"}


def steps():
    """Endless: two ingests of three messages, then a chat; each with its idempotency key."""
    n = 0
    while True:
        for _ in range(2):
            yield "ingest", {"messages": [message(n + k) for k in range(3)], "key": f"i{n}"}
            n += 3
        yield "chat", {"messages": [{"role": "user", "content": f"What about number {n - 2}?"}], "max_tokens": 6,
                       "temperature": 0, "key": f"c{n}"}


def final(server):
    client = server.client(600)
    got = client.ask("session.get", session="s", messages=True)
    last = client.chat("Tell me about the boat.", session="s", store=False, max_tokens=12)
    stats = client.ask("stats")
    return [(m.get("ref"), m["content"]) for m in got["messages"]], last["text"], stats


def main():
    print("seed", SEED)
    dice = random.Random(SEED)
    done_steps = []
    with Folder() as folder:
        source = steps()
        current = next(source)
        acknowledged = 0
        for kill in range(KILLS):
            with Server(folder) as server:
                timer = threading.Timer(dice.uniform(0.05, 1.5), server.kill)
                timer.start()
                try:
                    client = server.client(60)
                    while True:
                        answer = client.ask(current[0], session="s", **current[1])
                        if answer["event"] != "done":
                            break
                        done_steps.append(current)
                        acknowledged += len(current[1]["messages"]) + (current[0] == "chat")
                        current = next(source)
                except OSError:
                    pass
                timer.join()
                server.process.wait()
            if kill % 10 == 9:
                code, out, err = run("check", "--data", os.path.join(folder, "data"))
                check(f"after kill {kill + 1}: check is clean", code == 0, out + err)
                print(f"  {acknowledged} messages acknowledged", flush=True)
        with Server(folder) as server:
            answer = server.client(600).ask(current[0], session="s", **current[1])  # the one that was interrupted
            check("the interrupted request can be repeated", answer["event"] == "done", answer)
            done_steps.append(current)
            messages, text, stats = final(server)
            print("  rebuilt tokens", stats["rebuilt_tokens"], "dropped halves", stats["store"]["dropped_at_open"])
            check("no damaged value", stats["checksum_failures"] == 0, stats)
    with Folder() as folder, Server(folder) as server:
        client = server.client(600)
        for op, members in done_steps:
            client.ask(op, session="s", **members)
        expected, expected_text, _ = final(server)
    check(f"all {len(expected)} messages are there, in order, once", messages == expected,
          [(a, b) for a, b in zip(messages, expected) if a != b][:2] or (len(messages), len(expected)))
    check("the next answer equals that of an uninterrupted run", text == expected_text, (text, expected_text))
    finish()


main()
