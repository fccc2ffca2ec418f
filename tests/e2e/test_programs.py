"""The programs for people: ingest, sessions, match and chat, against a server and with one of their own."""
import json
import os
import re
import signal
import subprocess
import time

from harness import ENCODER, MODEL, PROGRAM, Folder, Server, check, environment, finish, run

LINES = [{"speaker": "Ana", "content": "My sister moved to Porto, she rents a flat near the river.", "time": "2025-03-02T10:00:00Z", "ref": "m1"},
         {"speaker": "Ben", "content": "Does she like it there?", "time": "2025-03-02T10:01:00Z"},
         {"role": "user", "content": "My cat is called Olive and eats nothing but tuna.", "time": "2025-06-11T18:30:00Z"}]
LOCOMO = {"qa": [], "conversation": {
    "speaker_a": "Ana", "session_2_date_time": "1:14 pm on 25 May, 2023", "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "The brake pads are thin."}],
    "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": [{"speaker": "Ana", "dia_id": "D1:1", "text": "The tomatoes are ripe."}]}}
REALTALK = {"name": {"speaker_1": "Emi"}, "session_1": [
    {"clean_text": "I play the cello.", "speaker": "Emi", "date_time": "29.12.2023, 22:42:04", "dia_id": "D1:1"}]}


def ingesting(folder, server):
    path = os.path.join(folder, "history.jsonl")
    bad = ["nonsense", '{"speaker":"Ana"}', '{"content":"x"}{"content":"y"}']
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join([json.dumps(LINES[0]), bad[0], "", json.dumps(LINES[1]), bad[1], json.dumps(LINES[2]), bad[2]]))
    code, out, said = run("ingest", path, "--session", "ana", "--socket", server.socket)
    check("ingest keeps the good lines", "ana: 3 messages" in out, out)
    check("names the bad ones by number", [int(n) for n in re.findall(r"history\.jsonl:(\d+): ", said)] == [2, 5, 7], said)
    check("and its exit status says so", code == 1, code)
    check("no bar without a terminal", "\r" not in said, said)
    turns = server.client().ask("session.get", session="ana", messages=True)["messages"]
    check("speakers, times and refs arrive", [t.get("ref") for t in turns] == ["m1", None, None] and turns[0]["speaker"] == "Ana" and
          turns[2]["time"] == "2025-06-11T18:30:00Z", turns)
    code, out, _ = run("ingest", path, "--session", "ana", "--socket", server.socket)
    again = server.client().ask("session.get", session="ana")["turns"]
    check("a second run stores nothing twice", again == 3 and "all stored before" in out, (out, again))


def layouts(folder, server):
    for name, data, want in (("locomo", LOCOMO, [("Ana", "D1:1", "2023-05-08T13:56:00Z"), ("Ben", "D2:1", "2023-05-25T13:14:00Z")]),
                             ("realtalk", REALTALK, [("Emi", "D1:1", "2023-12-29T22:42:04Z")])):
        path = os.path.join(folder, name + ".json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(data, f, indent=1)
        code, _, said = run("ingest", path, "--session", name, "--socket", server.socket)
        turns = server.client().ask("session.get", session=name, messages=True).get("messages", [])
        check(f"{name}: in order, with ids and times", code == 0 and [(t["speaker"], t["ref"], t["time"]) for t in turns] == want, (said, turns))


def through_a_pipe(server):
    p = subprocess.Popen([PROGRAM, "ingest", "-", "--session", "pipe", "--socket", server.socket], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    data = "".join(json.dumps({"content": f"café 中文 🤷🏽 number {i}"}, ensure_ascii=False) + "\r\n" for i in range(9)).encode()
    for at in range(0, len(data), 7):
        p.stdin.write(data[at:at + 7])
        p.stdin.flush()
        time.sleep(0.001)
    p.stdin.close()
    code = p.wait(120)
    turns = server.client().ask("session.get", session="pipe", messages=True).get("messages", [])
    want = [f"café 中文 🤷🏽 number {i}" for i in range(9)]
    check("odd-sized writes through a pipe change nothing", code == 0 and [t["content"] for t in turns] == want, turns[:2])
    p.stdout.close()
    p.stderr.close()


def showing(server):
    at = ("--socket", server.socket)
    code, out, _ = run("sessions", "list", *at)
    names = [line.split()[0] for line in out.strip().split("\n")[1:]]
    check("sessions list", code == 0 and sorted(names) == ["ana", "locomo", "pipe", "realtalk"], out)
    code, out, _ = run("sessions", "show", "ana", *at)
    check("sessions show", code == 0 and "turns      3" in out and "Porto" in out, out)
    code, out, _ = run("sessions", "show", "ana", "--json", *at)
    check("sessions show --json", code == 0 and json.loads(out.split("\n")[0])["turns"] == 3, out)
    code, out, _ = run("match", "Where does my sister live?", "--session", "ana", *at)
    check("match", code == 0 and "Porto" in out and "m1" in out and "2025-03-02" in out, out)
    code, out, _ = run("sessions", "erase", "locomo", *at)
    check("sessions erase", code == 0 and "2 turns erased" in out, out)
    code, _, said = run("sessions", "show", "locomo", *at)
    check("what is erased is not there", code == 1 and said.startswith("epimem: session_not_found"), said)
    code, _, said = run("sessions", "erase", *at)
    check("erase needs a name", code == 2, said)


def chatting(server):
    text = "Where does my sister live?\n\n/episodes\n/session\n/session other\n/nonsense\n/quit\nnever said\n"
    code, out, said = run("chat", "--session", "ana", "--socket", server.socket, "--max-tokens", "16", "--temperature", "0", text=text)
    check("chat ends well", code == 0 and said == "", (code, said))
    check("shows what was recalled", re.search(r"recalled: My sister .* · 2025-03-02 · score 0\.\d\d · \d+ tokens", out), out)
    check("/episodes", re.search(r"^  My sister .* · \d+ tokens$", out, re.M), out)
    check("/session", "ana: 5 turns" in out and "other: new" in out, out)
    check("/help for what is no command", "/nonsense is no command" in out, out)
    check("no colours over a pipe", "\033" not in out, out)
    check("/quit is the end", server.client().ask("session.get", session="ana")["turns"] == 5)
    code, _, said = run("chat", "--session", "s" * 200, "--socket", server.socket, text="Hello\n")
    check("a refused turn is told, and the exit status", code == 1 and "session" in said, (code, said))
    code, _, said = run("chat", "--socket", server.socket + "x", text="Hello\n")
    check("no server there", code == 1 and said.startswith("epimem: ") and "socketx" in said, said)


def interrupting(server):
    p = subprocess.Popen([PROGRAM, "chat", "--socket", server.socket, "--max-tokens", "900"], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment())
    p.stdin.write(b"Write a very long story about a lighthouse keeper and the sea.\n")
    p.stdin.flush()
    p.stdout.read1(1)
    p.send_signal(signal.SIGINT)
    p.stdin.write(b"/session\n")
    p.stdin.close()
    out = p.stdout.read().decode()
    check("Ctrl-C stops the answer, not the conversation", p.wait(60) == 0 and "(cancelled)" in out and "terminal: " in out, out)
    p.stdout.close()


def with_an_own_server(folder):
    data = os.path.join(folder, "own")
    env = {**environment(), "EPIMEM_MODEL": MODEL, "EPIMEM_ENCODER": ENCODER, "EPIMEM_DATA": data, "TMPDIR": folder}
    p = subprocess.run([PROGRAM, "ingest", "-", "--session", "ana"], input=json.dumps(LINES[0]).encode(), env=env,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    check("ingest with a server of its own", p.returncode == 0, p.stderr)
    p = subprocess.run([PROGRAM, "chat", "--session", "ana", "--max-tokens", "8"], input=b"Where does my sister live?\n", env=env,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    check("chat with one remembers it", p.returncode == 0 and b"recalled: My sister" in p.stdout, (p.stdout, p.stderr))
    check("the server and its socket are gone", not [x for x in os.listdir(folder) if x.startswith("epimem-")], os.listdir(folder))
    p = subprocess.run([PROGRAM, "chat", "-m", "/nonexistent.gguf"], input=b"", env=env, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=120)
    check("why it did not start is told", p.returncode == 1 and b"/nonexistent.gguf" in p.stderr, p.stderr)


def the_command():
    commands = {"serve", "chat", "ingest", "sessions", "match", "check", "tokenize", "score", "generate", "embed", "version"}
    for arguments in ([], ["--help"]):
        code, out, _ = run(*arguments)
        check(f"epimem {' '.join(arguments)} lists the commands", code == 0 and commands <= set(out.split()), out)
    code, out, _ = run("version")
    check("version", code == 0 and re.fullmatch(r"epimem \d+\.\d+\.\d+\n", out), out)
    code, _, said = run("sevre")
    check("an unknown command suggests one", code == 2 and "did you mean serve?" in said, said)
    for name in ("serve", "chat", "ingest", "sessions", "match"):
        code, out, _ = run(name, "--help")
        check(f"{name} --help", code == 0 and f"usage: epimem {name}" in out and "EPIMEM_" in out, out)


the_command()
with Folder() as folder:
    with Server(folder) as server:
        ingesting(folder, server)
        layouts(folder, server)
        through_a_pipe(server)
        showing(server)
        chatting(server)
        interrupting(server)
    with_an_own_server(folder)
finish()
