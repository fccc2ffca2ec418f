#!/usr/bin/env python3
"""Time from the start of the server's process to its first answer: start_up.py MODEL.gguf [--repeat N]

Each start has an empty data folder, so model, encoder, tokenizer and store are opened and one token is decoded. The first start
is left out: it may read the files from disk. Prints median, fastest and slowest in milliseconds.
"""
import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUESTION = {"id": 1, "op": "chat", "session": "s", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def first_answer(path, deadline):
    """Connects as soon as the server listens and returns its first answer."""
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.connect(path)
            except OSError:
                time.sleep(0.001)
                continue
            s.sendall((json.dumps(QUESTION) + "\n").encode())
            for line in s.makefile("r", encoding="utf-8"):
                event = json.loads(line)
                if event["event"] == "done":
                    return event
                if event["event"] == "error":
                    raise SystemExit(line)
    raise SystemExit("no answer within 60 s")


def start(epimem, model):
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, "s.sock")
        begin = time.monotonic()
        server = subprocess.Popen([epimem, "serve", "-m", model, "--data", os.path.join(folder, "data"), "--socket", path],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            first_answer(path, begin + 60)
            return (time.monotonic() - begin) * 1000
        finally:
            server.terminate()
            server.wait()
    finally:
        shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("model")
    p.add_argument("--epimem", default=os.path.join(ROOT, "build", "epimem"))
    p.add_argument("--repeat", type=int, default=11)
    a = p.parse_args()
    start(a.epimem, a.model)
    ms = [start(a.epimem, a.model) for _ in range(a.repeat)]
    print(f"start to first answer: {statistics.median(ms):.0f} ms median, {min(ms):.0f} to {max(ms):.0f}, {a.repeat} starts")


if __name__ == "__main__":
    main()
