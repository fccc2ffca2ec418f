"""epimem at work: a year of conversation goes in, three questions come back answered from the right episodes, the
server is killed, and the next answer is the same. Run by ./quickstart; needs build/epimem and models/."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "epimem"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
ENCODER = ROOT / "models" / "all-MiniLM-L6-v2"
CONVERSATION = ROOT / "docs" / "demo" / "conversation.jsonl"
SESSION = "mara-and-jonas"
CODEC = "oscar+k4"  # keys at four bits, values at two: on keys of two bits, the default, so small a model misses the cello teacher
EPISODES_SHOWN = 3
QUESTIONS = json.loads((ROOT / "docs" / "demo" / "questions.json").read_text())
BOLD, DIM, END = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "", "")
ROW_BYTES_BF16 = 30 * 3 * 64 * 2 * 2  # layers x KV heads x head_dim x (K, V) x bytes: the default model


def say(text=""):
    print(text, flush=True)


class Server:
    """One `epimem serve` on a Unix socket in the given folder."""

    def __init__(self, folder):
        self.path = str(folder / "epimem.sock")
        self.log = open(folder / "server.log", "ab")
        start = time.time()
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "-m", MODEL, "-e", ENCODER, "--data", folder / "data", "--socket", self.path,
             "--codec", CODEC], stderr=self.log)
        while True:
            try:
                self.socket = socket.socket(socket.AF_UNIX)
                self.socket.connect(self.path)
                break
            except OSError:
                self.socket.close()
                if self.process.poll() is not None or time.time() - start > 60:
                    sys.exit(f"the server did not start; its log: {folder / 'server.log'}")
                time.sleep(0.02)
        self.ready_s = time.time() - start
        self.lines = self.socket.makefile("r", encoding="utf-8")
        self.last_id = 0

    def ask(self, op, on_event=None, **members):
        self.last_id += 1
        self.socket.sendall((json.dumps({"id": self.last_id, "op": op, **members}) + "\n").encode())
        for line in self.lines:
            event = json.loads(line)
            if event["event"] == "error":
                sys.exit(f"{op}: {event['message']}")
            if event["event"] == "done":
                return event
            if on_event:
                on_event(event)
        sys.exit("the server closed the connection; its log tells why")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        self.process.wait()


def size(n):
    return f"{n / 1e6:.1f} MB" if n >= 1e6 else f"{n / 1e3:.0f} kB"


def show(question, done):
    memory, timing = done["memory"], done["timing"]
    say(f"\n  {BOLD}{question}{END}\n  {done['text'].strip()}")
    for e in memory["episodes"][:EPISODES_SHOWN]:
        dates = f"{e['from'][:10]} to {e['to'][:10]}" if e.get("from") else "no date"
        say(f"  {DIM}episode {e['id']}: \"{e['title'][:56]}\", {dates}, score {e['score']:.2f}, "
            f"{e['recalled_tokens']} tokens, {size(e['recalled_bytes'])}{END}")
    more = memory["episodes"][EPISODES_SHOWN:]
    if more:
        say(f"  {DIM}and {sum(e['recalled_tokens'] for e in more)} tokens of {len(more)} more{END}")
    say(f"  {DIM}first token after {timing['first_token_ms']:.0f} ms ({memory['match_ms']:.0f} ms to match, "
        f"{memory['load_ms']:.0f} ms to load {size(memory['loaded_bytes'])}); "
        f"{done['usage']['prompt_tokens']} tokens attended, {done['usage']['prompt_tokens_details']['cached_tokens']} of them from memory{END}")


def main():
    for needed in (PROGRAM, MODEL, ENCODER / "model.safetensors"):
        if not needed.exists():
            sys.exit(f"{needed} is missing: run ./quickstart")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="epimem-demo-"))
    try:
        run(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(folder):
    messages = [json.loads(line) for line in CONVERSATION.read_text().splitlines()]
    server = Server(folder)
    say(f"{BOLD}1. A year of conversation goes in{END}: {len(messages)} messages, "
        f"{messages[0]['time'][:10]} to {messages[-1]['time'][:10]}")

    def progress(event):
        if sys.stdout.isatty() and event["event"] == "progress" and event["phase"] == "prefill":
            print(f"\r  {event['done_tokens']} of {event['total_tokens']} tokens", end="", flush=True)

    start = time.time()
    done = server.ask("ingest", progress, session=SESSION, messages=messages)
    ingest_s, history = time.time() - start, done["tokens"]
    say(f"\r  {history} tokens in {ingest_s:.1f} s ({history / ingest_s:.0f} tokens/s with coding, embedding and commit); "
        f"{done['segments']} segments in {done['episodes']} episodes, {size(done['bytes'])} on disk")

    say(f"\n{BOLD}2. Three questions, months apart{END}")
    answers = {}
    for q in QUESTIONS:
        done = server.ask("chat", session=SESSION, messages=[{"role": "user", "content": q}], max_tokens=40, temperature=0, store=False)
        answers[q] = done["text"]
        show(q, done)
    say(f"\n  A plain engine attends to all {history} tokens for each: {size(history * ROW_BYTES_BF16)} of 16-bit cache "
        f"against {size(done['memory']['attended_bytes'])} here; past the model's window it could not go on at all.")

    say(f"\n{BOLD}3. kill -9, start again, ask again{END}")
    server.kill()
    server = Server(folder)
    q = QUESTIONS[-1]
    start = time.time()
    done = server.ask("chat", session=SESSION, messages=[{"role": "user", "content": q}], max_tokens=40, temperature=0, store=False)
    show(q, done)
    first = server.ready_s + done["timing"]["first_token_ms"] / 1e3
    say(f"  {'The same answer' if done['text'] == answers[q] else 'ANOTHER ANSWER'}, {done['usage']['prompt_tokens_details']['cached_tokens']} "
        f"tokens from the store; first token {first:.2f} s after the start of the process, "
        f"{ingest_s / first:.0f} times sooner than computing the history again ({ingest_s:.1f} s).")
    server.stop()
    if done["text"] != answers[q]:
        sys.exit("the answer changed over the restart")
    say(f"\n{BOLD}Try next{END}\n"
        "  build/epimem chat -m models/SmolLM2-135M-Instruct.Q4_1.gguf --data my-memory        talk to it; /help\n"
        "  build/epimem serve -m models/SmolLM2-135M-Instruct.Q4_1.gguf --data my-memory --socket epimem.sock\n"
        "  build/epimem ingest docs/demo/conversation.jsonl --session demo --socket epimem.sock  your own history, same form")


main()
