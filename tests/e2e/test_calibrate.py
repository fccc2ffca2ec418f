"""epimem calibrate: the same file twice, sound rotations, refused for another model, bad calls, import."""
import json
import os
import struct

from harness import MODEL, ROOT, Folder, Server, check, finish, run

TINY = os.path.join(ROOT, "tests", "data", "tiny", "llama_gqa3_llama3.gguf")


def read(path):
    """Header and data of a safetensors file."""
    with open(path, "rb") as f:
        content = f.read()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8:8 + size]), content[8 + size:]


def numbers(header, data, name, kind="f"):
    begin, end = header[name]["data_offsets"]
    return struct.unpack("<%d%s" % ((end - begin) // 4, kind), data[begin:end])


def served_codec(folder, model, *options, data):
    """The codec that a server says it uses when none is named, or what it says when it does not start."""
    try:
        with Server(folder, *options, data=data, model=model, settings={"EPIMEM_CODEC": ""}) as s:
            return s.client().ask("hello")["codec"]
    except RuntimeError as e:
        return str(e)


with Folder() as folder:
    text = os.path.join(folder, "text")
    with open(text, "w") as f:
        for i in range(120):
            f.write("Line %d: the %s of the harbour wrote %d names into the book.\n" % (i, "master" if i % 3 else "cat", i * i))
    model, first, second = (os.path.join(folder, n) for n in ("m.gguf", "m.calibration.safetensors", "second"))
    os.symlink(MODEL, model)
    check("without a calibration", served_codec(folder, model, data="old") == "turboquant")
    arguments = ["calibrate", "-m", model, "--text", text, "--tokens", "700"]
    status, out, err = run(*arguments, limit_s=900)
    check("it ends well", status == 0, err)
    check("it prints a table and the bits", "participation" in out and "oscar+ stores 2.383 bits" in out, out[-300:])
    run(*arguments, "-o", second, "-t", "1", limit_s=900)
    with open(first, "rb") as a, open(second, "rb") as b:
        check("the same input gives the same file, whatever the threads", a.read() == b.read())
    check("nothing else is left behind", sorted(os.listdir(folder)) == sorted(
        ["text", "m.gguf", "m.calibration.safetensors", "second", "old", "log"]), os.listdir(folder))
    check("beside the model it makes oscar+ the codec", served_codec(folder, model, data="new") == "oscar+")
    check("a folder keeps its codec", served_codec(folder, model, data="old") == "turboquant")
    said = served_codec(folder, model, "--calibration", first, data="old")
    check("... unless a calibration is named: refused by name", "oscar+" in said and "turboquant" in said, said)
    header, data = read(first)
    about = header["__metadata__"]
    check("the file names its model", len(about["weights"]) == 16 and about["layers"] == "30", about)
    bits = numbers(header, data, "k_bits", "i")
    check("four layers have four bits", sorted(bits)[-5:] == [2, 4, 4, 4, 4], bits)
    rotation = numbers(header, data, "k_rotation")[:64 * 64]
    length = sum(x * x for x in rotation[:64])
    across = sum(rotation[i] * rotation[64 + i] for i in range(64))
    check("rotations are orthogonal", abs(length - 1) < 1e-5 and abs(across) < 1e-5, (length, across))
    status, out, err = run("eval", "codec", "-m", TINY, "--calibration", first, "--text", text, "--codecs", "oscar+",
                           "--context", "64", "--tokens", "32")
    check("another model is refused", status == 1 and ("made for" in err or "vocabulary" in err), err)

    status, out, err = run("calibrate", "-m", MODEL, "--text", os.path.join(folder, "none"), "-o", second)
    check("a missing text is named", status == 1 and "none" in err, err)
    short = os.path.join(folder, "short")
    with open(short, "w") as f:
        f.write("Too short.")
    status, out, err = run("calibrate", "-m", MODEL, "--text", short, "-o", second)
    check("a short text is refused by name", status == 1 and "short has" in err, err)
    check("no model", run("calibrate", "-o", second)[0] == 2)
    check("bits out of range", run("calibrate", "-m", MODEL, "-o", second, "--bits", "9")[0] == 2)
    check("half an import", run("calibrate", "-m", MODEL, "-o", second, "--import", "k.pt")[0] == 2)
    zoo = os.path.join(ROOT, "tests", "data", "rotationzoo")
    status, out, err = run("calibrate", "-m", MODEL, "-o", second, "--import", os.path.join(zoo, "k.pt"), os.path.join(zoo, "v.pt"))
    check("rotations of another model are refused", status == 1 and "2 layers, the model has 30" in err, err)
    with open(first, "r+b") as f:
        f.truncate(100000)
    said = served_codec(folder, model, data="new")
    check("half a calibration is refused by name", "m.calibration.safetensors" in said, said)
    os.unlink(first)
    said = served_codec(folder, model, data="new")
    check("a folder whose calibration is gone says what to do", "epimem calibrate -m " + model in said, said)
finish()
