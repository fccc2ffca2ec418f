"""A full store is an error to that request and loses nothing else."""
from harness import Folder, Server, check, finish


def text(i):
    return f"Line {i}: the harbour had {i * 7} boats, the wind came from the east and the bell rang {i % 12} times."


def main():
    with Folder() as folder:
        with Server(folder, "--store-cap", "24M") as server:
            client = server.client(600)
            stored, full = 0, None
            for i in range(200):
                done = client.ask("ingest", session=f"s{i}", messages=[{"speaker": "Kim", "content": text(i * 40 + k)} for k in range(12)])
                if done["event"] == "error":
                    full = done
                    break
                stored += 1
            check("sessions fit until the cap is reached", stored >= 1, stored)
            check("then the error is store_full", full is not None and full["code"] == "store_full", full)
            listed = client.ask("session.list")
            check("the refused session is not there", len(listed["sessions"]) == stored, (len(listed["sessions"]), stored))
            answer = client.chat("How many boats had the harbour?", session="s0", store=False, max_tokens=8)
            check("earlier sessions answer", answer["event"] == "done", answer)
            for i in range(stored):
                client.ask("session.erase", session=f"s{i}")
            done = client.ask("ingest", session="fresh", messages=[{"speaker": "Kim", "content": text(1)}])
            check("after erasing there is room again", done["event"] == "done", done)
            server.kill()
        with Server(folder, "--store-cap", "24M") as server:
            listed = server.client().ask("session.list")
            check("all of that is on disk", [s["session"] for s in listed["sessions"]] == ["fresh"], listed)
    finish()


main()
