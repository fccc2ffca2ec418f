"""The same greedy question, cold, warm, crowded and restarted, gives the same text, and repeats come from the cache."""
import threading

from harness import Folder, Server, check, finish

SHORT = ["What is the capital of Portugal?", "Name three primary colours.", "Write one sentence about rain.",
         "How many legs does a spider have?", "Translate 'good morning' into French.", "What is 12 plus 30?",
         "Why is the sky blue?", "Give me a word that rhymes with light."]
NOTES = " ".join(f"Note {i}: shelf {i % 17} holds box {i * 7 % 101}, colour {['red', 'green', 'blue', 'grey'][i % 4]}."
                 for i in range(120))
LONG = [f"Part {i}. {NOTES} {ask}" for i, ask in enumerate(["Which box is on shelf 3?", "Count the colours."])]
PROMPTS = SHORT + LONG


def ask(server, text):
    client = server.client(300)
    done = client.chat(text, max_tokens=32)
    client.close()
    if done["event"] != "done":
        raise RuntimeError(done)
    return done["text"], done["usage"]["prompt_tokens_details"]["cached_tokens"]


def together(server, texts):
    out = [None] * len(texts)

    def one(i):
        out[i] = ask(server, texts[i])[0]
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(texts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out


def main():
    with Folder() as folder:
        first = {}
        with Server(folder) as server:
            for text in PROMPTS:
                first[text] = ask(server, text)[0]
            for round_name in ("second", "third"):
                for text in PROMPTS:
                    answer, cached = ask(server, text)
                    check(f"the {round_name} time: {text[-30:]}", answer == first[text], (first[text], answer))
                    if text in LONG:
                        check(f"the {round_name} time it came from the cache", cached > 1000, cached)
            for size in (2, 3, 10):
                for start in range(0, len(PROMPTS), size):
                    part = PROMPTS[start:start + size]
                    answers = together(server, part)
                    check(f"in a group of {len(part)}", answers == [first[t] for t in part],
                          [(first[t], a) for t, a in zip(part, answers) if first[t] != a])
            server.kill()
        with Server(folder) as server:
            for text in PROMPTS:
                answer, cached = ask(server, text)
                check(f"after a restart: {text[-30:]}", answer == first[text], (first[text], answer))
                if text in LONG:
                    check("after a restart it came from the store", cached > 1000, cached)
    finish()


main()
