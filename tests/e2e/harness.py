"""What the end-to-end tests share: a server on a temporary folder, clients of the line protocol, and checks.

Each test is a program: it prints one line per expectation and ends with exit status 1 when one was not met. The built
program is $EPIMEM_PROGRAM (default build/epimem); the models lie in models/. Python 3 standard library only.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAM = os.environ.get("EPIMEM_PROGRAM", os.path.join(ROOT, "build", "epimem"))
MODEL = os.path.join(ROOT, "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
ENCODER = os.path.join(ROOT, "models", "all-MiniLM-L6-v2")
START_S = 120  # under sanitizers on a busy machine

failed = 0


def check(name, good, detail=""):
    """Prints one line per expectation and remembers failures."""
    global failed
    failed += 0 if good else 1
    print(("ok    " if good else "FAIL  ") + name + ("" if good else ": " + str(detail)[:400]), flush=True)
    return good


def finish():
    print("all as expected" if not failed else f"{failed} expectation(s) not met")
    sys.exit(1 if failed else 0)


def environment():
    """That of the tests without settings of whoever runs them. The codec is named: whether a calibration lies beside the model
    must not decide what a test sees."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith("EPIMEM_")}, "EPIMEM_CODEC": "turboquant"}


class Folder:
    """A temporary folder with a short name (a socket's path is at most 107 bytes)."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="epimem-e2e-", dir="/tmp")

    def __enter__(self):
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


class Server:
    """A running server. Its data outlives it until the folder goes: start another one on the same folder to restart."""

    def __init__(self, folder, *options, data="data", model=MODEL, settings=None):
        self.socket = os.path.join(folder, "socket")
        self.log_path = os.path.join(folder, "log")
        arguments = [PROGRAM, "serve", "-m", model, "-e", ENCODER, "--socket", self.socket, *options]
        if data:
            arguments += ["--data", os.path.join(folder, data)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**environment(), **(settings or {})})
        self.wait_until_ready()

    def wait_until_ready(self):
        end = time.time() + START_S
        while time.time() < end:
            if self.process.poll() is not None:
                raise RuntimeError("the server ended: " + self.log())
            try:
                self.client().close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("the server does not listen: " + self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def client(self, timeout=120):
        return Client(self.socket, timeout)

    def stop(self):
        """SIGTERM; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)

    def kill(self):
        self.process.kill()
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()


class Client:
    """One connection."""

    def __init__(self, path, timeout=120):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.rest = b""
        self.last_id = 0

    def send(self, data):
        self.socket.sendall(data if isinstance(data, bytes) else (json.dumps(data) + "\n").encode())

    def line(self):
        """The next line without its newline, or None at the end of the stream."""
        while b"\n" not in self.rest:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                more = b""
            if not more:
                return None
            self.rest += more
        one, self.rest = self.rest.split(b"\n", 1)
        return one

    def event(self):
        raw = self.line()
        return json.loads(raw) if raw is not None else {"event": "closed"}

    def request(self, op, **members):
        """Sends a request; its id."""
        self.last_id += 1
        self.send({"id": self.last_id, "op": op, **members})
        return self.last_id

    def wait(self, identity):
        """The last event of that request; events of others are dropped."""
        while True:
            e = self.event()
            if e["event"] == "closed" or (e.get("id") == identity and e["event"] in ("done", "error")):
                return e

    def ask(self, op, **members):
        return self.wait(self.request(op, **members))

    def chat(self, text, **members):
        """A greedy answer to one message."""
        members = {"temperature": 0, "max_tokens": 24, **members}
        return self.ask("chat", messages=[{"role": "user", "content": text}], **members)

    def close(self):
        self.socket.close()


def run(*arguments, text=None, limit_s=300):
    """Runs the program to its end: (exit status or -signal or None when the limit ended it, stdout, stderr)."""
    try:
        p = subprocess.run([PROGRAM, *arguments], input=text if text is not None else "", stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, timeout=limit_s, env=environment(), encoding="utf-8", errors="replace")
    except subprocess.TimeoutExpired as e:
        return None, str(e.stdout), str(e.stderr)
    return p.returncode, p.stdout, p.stderr
