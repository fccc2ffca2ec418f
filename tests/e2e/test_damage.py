"""A flipped byte in a stored page is found before the page is used; the cache is computed again from the token log and
the answer does not change. A data folder of another codec is refused by name."""
import json
import os
import random

from harness import MODEL, ROOT, Folder, Server, check, finish, run

MESSAGES = [json.loads(line) for line in open(os.path.join(ROOT, "docs", "demo", "conversation.jsonl"), encoding="utf-8")][:150]


def ask(client):
    return client.chat("What is the name of Mara's sourdough starter?", session="s", store=False, max_tokens=16)


def flip(path, dice):
    """Flips one byte of a random value's payload: those of pages are by far the most of the file."""
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        at = dice.randrange(size // 4, size)
        f.seek(at)
        old = f.read(1)[0]
        f.seek(at)
        f.write(bytes([old ^ (1 << dice.randrange(8))]))
    return at, old


def restore(path, at, old):
    with open(path, "r+b") as f:
        f.seek(at)
        f.write(bytes([old]))


def main():
    dice = random.Random(7)
    with Folder() as folder:
        data = os.path.join(folder, "data")
        with Server(folder) as server:
            client = server.client(600)
            check("ingested", client.ask("ingest", session="s", messages=MESSAGES)["event"] == "done")
            before = ask(client)
            check("recall is used", before["memory"]["recalled_tokens"] > 0, before)
            server.stop()
        blobs = os.path.join(data, "blobs", "data.mdb")
        for _ in range(200):  # until a byte of a live value is hit
            at, old = flip(blobs, dice)
            code, out, _ = run("check", "--data", data)
            if code == 1:
                break
            restore(blobs, at, old)
        check("check names the damaged value", code == 1 and "damaged" in out, out)
        flips = 1
        for _ in range(400):  # and more, so that what the question needs is hit
            flip(blobs, dice)
            flips += 1
        with Server(folder) as server:
            client = server.client(600)
            after = ask(client)
            stats = client.ask("stats")
            check("the answer is unchanged", after.get("text") == before["text"], (before["text"], after))
            check("the same utterances were used", after["memory"]["used"] == before["memory"]["used"])
            check("the damage was seen and counted", stats["checksum_failures"] + stats["corrupt_values"] > 0, stats)
            check("pages were computed again", stats["rebuilt_tokens"] > 0 and stats["rebuilt_pages"] > 0, stats)
            second = ask(client)
            check("and once only", second["text"] == before["text"] and
                  client.ask("stats")["rebuilt_tokens"] == stats["rebuilt_tokens"], second)
            server.stop()
        code, _, err = run("serve", "-m", MODEL, "--data", data, "--codec", "naive", "--socket", os.path.join(folder, "x"))
        check("a folder of another codec is refused", code is not None and 0 < code < 126 and "naive" in err and "turboquant" in err, err)
        lock_code = None
        with Server(folder) as server:
            lock_code, _, err = run("serve", "-m", MODEL, "--data", data, "--socket", os.path.join(folder, "y"))
            check("a folder in use is refused with the holder's pid", lock_code is not None and 0 < lock_code < 126 and
                  str(server.process.pid) in err, err)
    finish()


main()
