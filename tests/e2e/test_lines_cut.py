"""Lines cut anywhere: a frame is one line, however the bytes come; a newline always resynchronises."""
import json
import time

from harness import Folder, Server, check, finish

IDS = ["eins", "中文-é", "🤷🏽‍♀️", "spaces around"]
DATA = ('{"id":"eins","op":"ping"}\n{"id":"中文-é","op":"ping"}\n'
        '{"op":"ping","id":"🤷🏽‍♀️","note":"a \\"quoted\\" line\\nbreak"}\n  {"id":"spaces around","op":"ping"}  \n').encode()


def answers(server, parts, n, pause=0.001):
    """Ids of the first n answers to bytes sent in these parts."""
    c = server.client(timeout=10)
    for part in parts:
        c.send(part)
        time.sleep(pause)
    got = [c.event().get("id") for _ in range(n)]
    c.close()
    return got


def good_lines(server):
    bad = [i for i in range(1, len(DATA)) if answers(server, [DATA[:i], DATA[i:]], len(IDS)) != IDS]
    check(f"cut in two at each of {len(DATA) - 1} places", not bad, bad[:5])
    check("one byte at a time", answers(server, [DATA[i:i + 1] for i in range(len(DATA))], len(IDS), 0.0002) == IDS)
    check("fifty times in one piece", answers(server, [DATA * 50], 50 * len(IDS)) == IDS * 50)
    check("CR LF at the ends", answers(server, [DATA.replace(b"\n", b"\r\n")], len(IDS)) == IDS)
    check("empty lines between", answers(server, [DATA.replace(b"\n", b"\n\n\r\n")], len(IDS)) == IDS)
    for size in (4095, 4096, 4097, 65535, 65536, 65537):
        line = b'{"id":"wide","op":"ping"' + b" " * (size - 26) + b"}\n"
        check(f"a line of {size} bytes", answers(server, [line, DATA], 1 + len(IDS)) == ["wide"] + IDS)


def bad_lines(server):
    c = server.client(timeout=30)
    for name, line, code in (("not UTF-8", b'{"id":"caf\xe9","op":"ping"}', "bad_json"),
                             ("not JSON", b'{"id":"open","op":"ping"', "bad_json"),
                             ("two values", b'{"id":"a","op":"ping"}{"id":"b","op":"ping"}', "bad_json"),
                             ("a NUL escape", b'{"id":"a\\u0000b","op":"ping"}', "bad_json"),
                             ("a member twice", b'{"id":"a","id":"b","op":"ping"}', "bad_json"),
                             ("nested 10,000 deep", b"[" * 10000, "bad_json"),
                             ("a list", b"[1]", "bad_request"),
                             ("over 16 MiB", b"x" * (17 << 20), "line_too_long")):
        c.send(line + b'\n{"id":"next","op":"ping"}\n')
        first, second = c.event(), c.event()
        check(f"{name}: one error, id null", first["event"] == "error" and first["id"] is None and first["code"] == code, first)
        check(f"{name}: the next line is served", second["id"] == "next" and second["event"] == "done", second)
    c.close()


def ids(server):
    c = server.client(timeout=10)
    for text in ("9007199254740992", "-9007199254740992", "0", '""', '"\\u00e9\\n\\""', '"' + "x" * 128 + '"'):
        c.send(f'{{"id":{text},"op":"ping"}}\n'.encode())
        a = c.event()
        check(f"id {text[:20]} comes back", a["event"] == "done" and a["id"] == json.loads(text), a)
    for text in ("9007199254740993", "1.5", "1.0", "1e3", "null", "true", "[]", '"' + "x" * 129 + '"'):
        c.send(f'{{"id":{text},"op":"ping"}}\n'.encode())
        a = c.event()
        check(f"id {text[:20]} is refused", a["event"] == "error" and a["id"] is None and a["param"] == "id", a)
    c.close()


with Folder() as folder, Server(folder) as server:
    good_lines(server)
    bad_lines(server)
    ids(server)
finish()
