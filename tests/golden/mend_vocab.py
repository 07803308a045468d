"""Brings back vocabulary files that were once read as text and written again, which turned every
byte sequence that is no UTF-8 into U+FFFD. Strings came through whole; what broke is numbers:
lengths from 128 on, counts, ids and the scores. Lengths and counts follow from where the next
field begins, ids from the one control token they can name, and the scores of Llama's vocabulary
from their rule. The proof at the end is that damaging the mended file in the same way
gives the file we started from, byte for byte."""
import struct

GONE = "\ufffd".encode()
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Broken(Exception):
    pass


def damage(data):
    return data.decode("utf-8", "replace").encode()


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, size):
        """Bytes of a number; a lost one is None."""
        out = []
        while len(out) < size:
            if self.data.startswith(GONE, self.at):
                out.append(None)
                self.at += 3
            elif self.at < len(self.data):
                out.append(self.data[self.at])
                self.at += 1
            else:
                raise Broken("past the end")
        return out

    def count(self):
        """An array's length. One U+FFFD may stand for two bytes of it; the first element starts with
        no zero byte, so the zeros tell how many were lost."""
        if not self.data.startswith(GONE, self.at):
            return self.number(8)
        zeros = self.at + 3
        while self.data[zeros] == 0:
            zeros += 1
        known = zeros - self.at - 3
        if known == 6:
            self.at = zeros
            return [None, None] + [0] * 6
        return self.number(8)

    def string(self, next_is):
        """Bytes of a string. Where its length is lost: the shortest after which `next_is` holds."""
        raw = self.number(8)
        if None not in raw:
            n = int.from_bytes(bytes(raw), "little")
            if n > len(self.data) - self.at:
                raise Broken(f"string of {n} bytes at {self.at}")
            self.at += n
            return self.data[self.at - n:self.at]
        low = [raw[0]] if raw[0] is not None else range(128, 256)
        high = [raw[1]] if raw[1] is not None else range(128, 256)
        start = self.at
        for n in sorted(a + 256 * b for a in low for b in high):
            self.at = start + n
            if next_is(self):
                self.at = start + n
                return self.data[start:start + n]
        raise Broken(f"no length fits the string at {start}")

    def looks_like_key(self):
        if self.at == len(self.data):
            return True
        raw = self.data[self.at:self.at + 8]
        if len(raw) < 8 or raw[1:] != b"\0" * 7 or not 4 < raw[0] < 128:
            return False
        name = self.data[self.at + 8:self.at + 8 + raw[0]]
        return all(c in b"abcdefghijklmnopqrstuvwxyz0123456789._" for c in name) and name[:1].isalpha() and b"." in name

    def looks_like_string(self):
        """A length under 65536, then as many bytes without a zero."""
        try:
            raw = self.number(8)
        except Broken:
            return False
        if any(raw[2:]) or None in raw[2:]:
            return False
        n = int.from_bytes(bytes(128 if b is None else b for b in raw[:2]), "little")
        return 0 < n < 4096 and b"\0" not in self.data[self.at:self.at + n]


def read_array(r, tokens):
    kind, raw = int.from_bytes(bytes(r.number(4)), "little"), r.count()
    lost = None in raw
    n = None if lost else int.from_bytes(bytes(raw), "little")
    items = []
    if kind == 8:
        while len(items) != n and not (lost and r.looks_like_key()):
            items.append(r.string(lambda q: q.looks_like_string() or q.looks_like_key()))
        body = b"".join(struct.pack("<Q", len(s)) + s for s in items)
    elif kind == 6:
        body, items = mend_scores(r, n, tokens), []
    else:
        while len(items) != n and not (lost and r.looks_like_key()):
            items.append(bytes(255 if b is None else b for b in r.number(SIZES[kind])))
        body = b"".join(items)
        items = [int.from_bytes(i, "little") for i in items]
    return struct.pack("<IQ", kind, n if kind == 6 else len(items)) + body, items


def mend_scores(r, n, tokens):
    """Llama's vocabulary: specials and bytes 0, then minus the rank, tokens that were added -1000.
    Others differ and show it: -1e9 has three bytes of ASCII, so do -1000 and -10000."""
    if n != len(tokens):
        raise Broken(f"{n} scores for {len(tokens)} tokens")
    scores = [0.0 if i < 259 else -float(i - 259) if i < 32000 else -1000.0 for i in range(n)]
    while True:
        body = struct.pack(f"<{n}f", *scores)
        lost = damage(body)
        have = r.data[r.at:r.at + len(lost)]
        if have == lost:
            r.at += len(lost)
            return body
        wrong = next(i for i in range(len(lost)) if have[i] != lost[i])
        first = n - 1
        while len(damage(body[:4 * first])) > wrong:
            first -= max(1, (len(damage(body[:4 * first])) - wrong) // 12)
        other = {b"(kn": -1e9, b"\0\0z": -1000.0, b"\0@\x1c": -10000.0}.get(have[len(damage(body[:4 * first])):][:3])
        if other is None or scores[first] == other:
            raise Broken(f"score {first} is neither minus the rank nor -1000, -10000 or -1e9")
        scores[first] = other


def mend(data):
    r = Reader(data)
    head = r.data[:24]
    r.at = 24
    keys, tokens = [], []
    for _ in range(struct.unpack("<Q", head[16:])[0]):
        name = r.string(Reader.looks_like_key)
        kind = int.from_bytes(bytes(r.number(4)), "little")
        value = None
        if kind == 9:
            body, value = read_array(r, tokens)
            if name == b"tokenizer.ggml.tokens":
                tokens = value
        elif kind == 8:
            s = r.string(Reader.looks_like_key)
            body = struct.pack("<Q", len(s)) + s
        else:
            value = r.number(SIZES[kind])
            body = bytes(255 if b is None else b for b in value)
        keys.append([name, kind, body, value])
    types = next((k[3] for k in keys if k[0] == b"tokenizer.ggml.token_type"), None)
    for k in keys:
        if k[0].endswith(b"_token_id") and None in k[3]:
            fits = [i for i in range(len(tokens)) if types[i] == 3 and
                    all(b is None and c > 127 or b == c for b, c in zip(k[3], struct.pack("<I", i)))]
            if len(fits) != 1:
                raise Broken(f"{k[0].decode()} could be any of {fits}")
            k[2] = struct.pack("<I", fits[0])
    out = head + b"".join(struct.pack("<Q", len(k)) + k + struct.pack("<I", kind) + body for k, kind, body, _ in keys)
    out += data[r.at:]
    if damage(out) != data:
        raise Broken("the mended file is not the original")
    return out
