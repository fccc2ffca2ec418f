"""A socket path that is a little too long is refused with both numbers, before anything is loaded or created; files of
dead servers are replaced, those of live ones and other files left alone."""
import os
import socket
import subprocess
import time

from harness import MODEL, PROGRAM, Folder, Server, check, environment, finish, run


def path(folder, length, last):
    """A path of exactly that many bytes."""
    tail = last + ".sock"
    return folder + "/" + "x" * (length - len(folder) - 1 - len(tail)) + tail


def too_long():
    for length, last in ((108, "a"), (108, "b"), (150, "a"), (4000, "a")):
        with Folder() as d:
            p = path(d, length, last)
            for flag in ("--host", "--socket"):
                start = time.time()
                code, _, said = run("serve", "-m", MODEL, flag, p, limit_s=30)
                check(f"{length} bytes, {flag}: refused", code is not None and 0 < code < 126, (code, said))
                check(f"{length} bytes, {flag}: both numbers", f"{length} bytes" in said and "107" in said, said)
                check(f"{length} bytes, {flag}: before the model is loaded", time.time() - start < 1, time.time() - start)
            check(f"{length} bytes: nothing was created", os.listdir(d) == [], os.listdir(d))
            for client in (("chat",), ("sessions", "list"), ("match", "x", "--session", "s")):
                code, _, said = run(*client, "--socket", p)
                check(f"{length} bytes: {client[0]} refuses it too", code and 0 < code < 126 and "107" in said, (code, said))


def just_right():
    with Folder() as d:
        p = path(d, 107, "a")
        server = subprocess.Popen([PROGRAM, "serve", "-m", MODEL, "--host", p], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, env=environment())
        good, end = False, time.time() + 60
        while not good and time.time() < end and server.poll() is None:
            with socket.socket(socket.AF_UNIX) as s:
                try:
                    s.connect(p)
                    good = True
                except OSError:
                    time.sleep(0.1)
        check("107 bytes: listens under exactly that name", good and os.listdir(d) == [os.path.basename(p)], os.listdir(d))
        server.terminate()
        check("ends well", server.wait(60) == 0)
        check("and is gone after the end", os.listdir(d) == [], os.listdir(d))


def files_in_the_way():
    with Folder() as d:
        p = os.path.join(d, "socket")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(p)
        with Server(d) as server:
            check("the file of a dead server is replaced", server.client().ask("ping")["event"] == "done")
            code, _, said = run("serve", "-m", MODEL, "--socket", p, limit_s=30)
            check("that of a live one is not", code == 1 and "already" in said, (code, said))
            check("which goes on", server.client().ask("ping")["event"] == "done")
        with open(p, "w", encoding="utf-8") as f:
            f.write("mine")
        code, _, said = run("serve", "-m", MODEL, "--socket", p, limit_s=30)
        check("a file that is no socket is left alone", code == 1 and open(p, encoding="utf-8").read() == "mine", said)


too_long()
just_right()
files_in_the_way()
finish()
