"""History that changes: repeated, extended, rewritten and regenerated requests, idempotency keys, nameless sessions,
store false, cancel, time to live."""
import time

from harness import Folder, Server, check, finish

FIRST = {"role": "user", "content": "My cat is called Olive. What is a good name for a second cat?"}
ASK = {"role": "user", "content": "What is my cat called?"}


def done(answer):
    return answer["event"] == "done"


def named_sessions(client):
    one = client.ask("chat", session="a", messages=[FIRST], max_tokens=12, temperature=0, key="k1")
    check("first turn", done(one) and one["turn"] == 2, one)
    again = client.ask("chat", session="a", messages=[FIRST], max_tokens=12, temperature=0, key="k1")
    check("the same key is the same turn", again.get("text") == one["text"] and again["turn"] == 2 and
          client.ask("session.get", session="a")["turns"] == 2, again)
    reply = {"role": "assistant", "content": one["text"]}
    two = client.ask("chat", session="a", messages=[FIRST, reply, ASK], max_tokens=12, temperature=0)
    check("a request that repeats the session goes on behind it", done(two) and two["turn"] == 4 and
          two["usage"]["prompt_tokens_details"]["cached_tokens"] > 30, two)
    fresh = client.ask("chat", session="b", messages=[FIRST], max_tokens=12, temperature=0)
    two_b = client.ask("chat", session="b", messages=[ASK], max_tokens=12, temperature=0)
    check("only the new message: the same answer", two_b["text"] == two["text"], (two["text"], two_b["text"]))
    regenerated = client.ask("chat", session="a", messages=[FIRST, reply, ASK], max_tokens=12, temperature=0)
    check("asked again, the last turn is made again", done(regenerated) and regenerated["turn"] == 4 and
          regenerated["text"] == two["text"], regenerated)
    other = {"role": "user", "content": "Tell me a fact about the sea."}
    rewritten = client.ask("chat", session="a", messages=[FIRST, reply, other], max_tokens=12, temperature=0)
    check("rewritten from the second question on", done(rewritten) and rewritten["turn"] == 4, rewritten)
    got = client.ask("session.get", session="a", messages=True)
    check("the old turn is gone", [m["content"] for m in got["messages"]] ==
          [FIRST["content"], one["text"], other["content"], rewritten["text"]], got)
    expected = client.ask("chat", session="c", messages=[FIRST], max_tokens=12, temperature=0)
    expected = client.ask("chat", session="c", messages=[other], max_tokens=12, temperature=0)
    check("and the answer is that of a session that never had it", rewritten["text"] == expected["text"],
          (rewritten["text"], expected["text"]))
    unsaved = client.ask("chat", session="a", messages=[ASK], max_tokens=4, temperature=0, store=False)
    check("store false leaves nothing", done(unsaved) and client.ask("session.get", session="a")["turns"] == 4, unsaved)
    check("fresh is fresh", done(fresh))


def nameless_sessions(client):
    def greet(text):
        return client.ask("chat", messages=[{"role": "user", "content": text}], max_tokens=8, temperature=0)

    def go_on(start, answer, text):
        return client.ask("chat", messages=[{"role": "user", "content": start}, {"role": "assistant", "content": answer},
                                            {"role": "user", "content": text}], max_tokens=12, temperature=0)
    anna, berta = greet("Hello there!"), greet("Hello there!")
    check("the same greeting twice gives the same answer", anna["text"] == berta["text"], (anna, berta))
    a = go_on("Hello there!", anna["text"], "My code is 7314. Remember it.")
    b = go_on("Hello there!", berta["text"], "What is my code?")
    own = client.ask("chat", session="own", messages=[{"role": "user", "content": "Hello there!"}], max_tokens=8, temperature=0)
    own = client.ask("chat", session="own", messages=[{"role": "user", "content": "What is my code?"}], max_tokens=12, temperature=0)
    check("the second person's tokens are those of a session of her own", b["usage"]["prompt_tokens"] == own["usage"]["prompt_tokens"],
          (b["usage"], own["usage"]))
    check("and she does not learn the first one's code", "7314" not in b["text"], b["text"])
    later = client.ask("chat", messages=[{"role": "user", "content": "Hello there!"}, {"role": "assistant", "content": anna["text"]},
                                         {"role": "user", "content": "My code is 7314. Remember it."},
                                         {"role": "assistant", "content": a["text"]},
                                         {"role": "user", "content": "What is my code?"}], max_tokens=12, temperature=0)
    check("the first person's session goes on from its cache", done(later) and
          later["usage"]["prompt_tokens_details"]["cached_tokens"] >= a["usage"]["prompt_tokens"], later["usage"])


def limits(client, server):
    long = client.ask("chat", session="long", messages=[{"role": "user", "content": "word " * 9000}], max_tokens=4)
    check("a message longer than the context is refused with the numbers", long.get("code") == "context_length_exceeded" and
          "8192" in long["message"], long)
    gone = client.ask("session.get", session="long")
    check("and leaves no session", gone.get("code") == "session_not_found", gone)
    own = client.chat("hi", session="~mine")
    check("a name of the server's kind is refused", own.get("code") == "bad_request" and own["param"] == "session", own)
    made = client.ask("session.create", session="brief", ttl_s=1)
    check("made with a time to live", done(made) and made["expires"], made)
    time.sleep(1.3)
    check("and gone after it", client.ask("session.get", session="brief").get("code") == "session_not_found")
    other = server.client()
    story = {"role": "user", "content": "Tell me a very long story about a ship, a storm and a lighthouse."}
    identity = client.request("chat", session="x", messages=[story], max_tokens=2000, temperature=0)
    while client.event()["event"] != "token":
        pass
    check("cancel of another connection's request finds none", not other.ask("cancel", target=identity)["cancelled"])
    cancel = client.request("cancel", target=identity)
    events = {}
    while len(events) < 2:
        e = client.event()
        if e["event"] in ("done", "error"):
            events[e["id"]] = e
    check("cancelled", events[cancel]["cancelled"] and events[identity].get("finish_reason") == "cancelled", events)
    check("a cancelled turn is not stored", client.ask("session.get", session="x").get("code") == "session_not_found")


def main():
    with Folder() as folder, Server(folder) as server:
        client = server.client(600)
        named_sessions(client)
        nameless_sessions(client)
        limits(client, server)
    finish()


main()
