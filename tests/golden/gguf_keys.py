"""The keys of a GGUF file, by the standard library alone."""
import struct

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def read(path):
    with open(path, "rb") as f:
        if f.read(4) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file")

        def scalar(code):
            return struct.unpack("<" + code, f.read(struct.calcsize("<" + code)))[0]

        def string():
            return f.read(scalar("Q"))

        def value(kind):
            if kind == 8:
                return string()
            if kind == 9:
                elem, n = scalar("I"), scalar("Q")
                if elem in (8, 9):
                    return [value(elem) for _ in range(n)]
                code = SCALARS[elem]
                return list(struct.unpack(f"<{n}{code}", f.read(n * struct.calcsize("<" + code))))
            return scalar(SCALARS[kind])

        scalar("I"), scalar("Q")
        keys = {}
        for _ in range(scalar("Q")):
            name = string().decode()
            keys[name] = value(scalar("I"))
        return keys


def letters():
    """GPT-2's alphabet: byte -> character."""
    prints = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    table, k = {}, 0
    for b in range(256):
        if b in prints:
            table[b] = chr(b)
        else:
            table[b] = chr(0x100 + k)
            k += 1
    return table
