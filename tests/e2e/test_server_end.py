"""SIGTERM finishes what runs; a second signal ends at once; TCP and a service manager are told the truth."""
import json
import os
import re
import signal
import socket
import subprocess
import time

from harness import MODEL, PROGRAM, Folder, Server, check, environment, finish

STORY = [{"role": "user", "content": "Write a very long story about a lighthouse keeper and the sea."}]


def draining():
    with Folder() as folder, Server(folder) as server:
        c, idle = server.client(), server.client()
        c.request("chat", messages=STORY, max_tokens=60, temperature=0)
        while c.event()["event"] != "token":
            pass
        server.process.send_signal(signal.SIGTERM)
        check("an idle client is let go", idle.event()["event"] == "closed")
        check("nobody new is let in", not can_connect(server.socket))
        check("new requests are refused", c.ask("stats").get("code") == "busy")
        end = c.wait(1)
        check("what runs is finished", end["event"] == "done" and end["finish_reason"] in ("length", "stop"), end)
        check("then the connection is closed", c.event()["event"] == "closed")
        check("exit status 0", server.process.wait(60) == 0, server.log())
        check("and the socket file is gone", not os.path.exists(server.socket))


def can_connect(path):
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(path)
            return True
        except OSError:
            return False


def second_signal():
    with Folder() as folder, Server(folder) as server:
        c = server.client()
        c.request("chat", messages=STORY, max_tokens=2000, temperature=0)
        while c.event()["event"] != "token":
            pass
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        check("the first signal waits", server.process.poll() is None)
        start = time.time()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(60)
        check("the second ends at once", time.time() - start < 1, time.time() - start)
        check("and the socket file is gone", not os.path.exists(server.socket))


def nothing_else_given():
    """A port alone is enough; the data is temporary, which is said."""
    with Folder() as folder:
        log = os.path.join(folder, "log")
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(os.path.join(folder, "notify"))
        notify.settimeout(120)
        env = {**environment(), "NOTIFY_SOCKET": os.path.join(folder, "notify"), "TMPDIR": folder}
        with open(log, "wb") as out:
            p = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--host", "127.0.0.1", "--port", "0"], stderr=out, env=env)
        check("the service manager is told", notify.recv(100) == b"READY=1\n")
        said = open(log, encoding="utf-8").read()
        port = re.search(r"listening on 127\.0\.0\.1:(\d+)", said)
        check("the port that was free is printed", port, said)
        check("the temporary folder is warned of", "--data" in said, said)
        s = socket.create_connection(("127.0.0.1", int(port.group(1))), 10)
        s.sendall(b'{"id":1,"op":"hello"}\n')
        hello = json.loads(s.makefile().readline())
        check("and it answers there", hello["event"] == "done" and hello["encoder"], hello)
        s.close()
        p.terminate()
        check("it ends well", p.wait(60) == 0)


def faults_at_start():
    for arguments, word in ((["serve"], "-m"), (["serve", "-m", "/nonexistent.gguf", "--socket", "/tmp/x"], "/nonexistent.gguf"),
                            (["serve", "-m", MODEL], "--socket"), (["serve", "-m", MODEL, "--sockte", "x"], "--socket"),
                            (["serve", "-m", MODEL, "--listen", "nowhere"], "HOST:PORT"),
                            (["serve", "-m", MODEL, "-e", "/nonexistent", "--socket", "/tmp/x"], "/nonexistent")):
        p = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, env=environment())
        said = p.stderr.decode()
        last = said.strip().split("\n")[-1]
        check(f"{' '.join(arguments)[-40:]}: says what is wrong", 0 < p.returncode < 126 and word in last and last.startswith("epimem: "), said)


draining()
second_signal()
nothing_else_given()
faults_at_start()
finish()
