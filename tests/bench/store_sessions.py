"""Time of a `match` in a store as other sessions come to it: python3 tests/bench/store_sessions.py [SESSIONS]

The time is the round trip of a request, so the embedding of the question and the socket are in it. Prints a JSON line
before and behind the SESSIONS (10,000) sessions that are created.
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from harness import Folder, Server  # noqa: E402

ROUNDS = 41
MESSAGES = [{"speaker": "Ana" if i % 2 == 0 else "Ben", "content": f"On day {i} we walked {i + 2} miles."} for i in range(20)]


def measure(client, sessions):
    times_ms = []
    for i in range(ROUNDS):
        start = time.perf_counter()
        done = client.ask("match", session="asked", text=f"How far did Ana walk on day {i}?", budget=256)
        times_ms.append((time.perf_counter() - start) * 1000)
        assert done["event"] == "done", done
    times_ms.sort()
    print(json.dumps({"sessions": sessions, "match_ms": round(statistics.median(times_ms), 2),
                      "fastest_ms": round(times_ms[0], 2), "slowest_ms": round(times_ms[-1], 2)}), flush=True)


def main():
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 10000
    with Folder() as folder, Server(folder) as server:
        client = server.client(600)
        assert client.ask("ingest", session="asked", messages=MESSAGES)["event"] == "done"
        measure(client, 1)
        start = time.perf_counter()
        for i in range(sessions - 1):
            done = client.ask("session.create", session=f"other-{i}")
            assert done["event"] == "done", done
        print(json.dumps({"create_ms": round((time.perf_counter() - start) * 1000 / max(1, sessions - 1), 3)}), flush=True)
        measure(client, sessions)


main()
