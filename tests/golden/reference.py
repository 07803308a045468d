"""The forward pass of the supported architectures, written from their published descriptions.

Shares nothing with the library: the file is read and dequantised by the `gguf` package, and all
arithmetic is NumPy in float64, position by position against an n x n mask. `bug` plants one of
BUGS, to show how far off a wrong implementation is.
"""
import math

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

BUGS = ("rope_off_by_one", "norm_eps", "swap_gate_up", "q4_k_minimum")
EXPERT_BUGS = ("next_expert", "shares_of_others")  # of models with experts; gpt-oss: and OSS_BUGS
OSS_BUGS = ("no_clamp", "no_sinks", "ramp_rounded", "bias_of_next")


def q4_k_wrong_minimum(raw):
    """Q4_K in which each run of 32 takes the minimum of the next run."""
    b = raw.reshape(-1, 144)
    d = b[:, 0:2].copy().view(np.float16).astype(np.float64)
    dmin = b[:, 2:4].copy().view(np.float16).astype(np.float64)
    s = b[:, 4:16].astype(np.int32)
    scale = np.concatenate([s[:, 0:4] & 63, (s[:, 8:12] & 15) | ((s[:, 0:4] >> 6) << 4)], axis=1)
    low = np.concatenate([s[:, 4:8] & 63, (s[:, 8:12] >> 4) | ((s[:, 4:8] >> 6) << 4)], axis=1)
    q = b[:, 16:].reshape(-1, 4, 32)
    q = np.stack([q & 15, q >> 4], axis=2).reshape(-1, 8, 32).astype(np.float64)
    w = (d * scale)[:, :, None] * q - (dmin * np.roll(low, -1, axis=1))[:, :, None]
    return w.reshape(*raw.shape[:-1], -1)


class File:
    def __init__(self, path, bug=None):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.bug = bug
        self.arch = self.key("general.architecture")
        self.cache = {}
        self.margin = math.inf  # of the choice of experts: the least lead of a chosen one, a token

    def key(self, name, default=None):
        field = self.reader.get_field(name)
        return default if field is None else field.contents()

    def hp(self, name, default=None):
        v = self.key(f"{self.arch}.{name}", default)
        if isinstance(v, list):
            assert all(x == v[0] for x in v)
            v = v[0]
        return v

    def raw(self, name):
        """Dequantised, [rows, cols] as the tensor is used; float32."""
        t = self.tensors[name]
        if self.bug == "q4_k_minimum" and t.tensor_type == GGMLQuantizationType.Q4_K:
            w = q4_k_wrong_minimum(t.data)
        else:
            w = dequantize(t.data, t.tensor_type)
        return w.reshape([int(x) for x in t.shape[::-1]])

    def get(self, name):
        if name not in self.cache:
            w = self.raw(name)
            self.cache[name] = w.astype(np.float64) if w.size < 1 << 24 else w
        return self.cache[name]

    def has(self, name):
        return name in self.tensors


def matmul(x, w):
    """x [T, C] times w [R, C] transposed, in float64 without a float64 copy of a large w."""
    out = np.empty((x.shape[0], w.shape[0]))
    step = max(1, (1 << 24) // w.shape[1])
    for r in range(0, w.shape[0], step):
        out[:, r:r + step] = x @ w[r:r + step].astype(np.float64).T
    return out


def rms_norm(x, w, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def yarn_inverse_frequencies(inv, base, rotated, factor, trained, fast, slow, rounded):
    """YaRN (Peng et al., 2023): high frequencies stay, low ones are interpolated, a ramp between."""
    def pair(turns):
        return rotated * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = pair(fast), pair(slow)
    if rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = np.clip((np.arange(rotated // 2) - low) / max(high - low, 0.001), 0, 1)
    return inv * (1 - ramp) + inv / factor * ramp


def rope_angles(f, pos, rotated, base, context, scaled=True):
    """cos and sin [T, rotated/2]."""
    inv = base ** (-2.0 * np.arange(rotated // 2) / rotated)
    magnitude = 1.0
    trained = f.hp("rope.scaling.original_context_length", f.hp("context_length"))
    if scaled:
        kind, factor = f.hp("rope.scaling.type"), f.hp("rope.scaling.factor", 0.0)
        if kind == "linear" or (kind is None and factor not in (0, 1)):
            inv = inv / factor
        elif kind == "yarn":
            inv = yarn_inverse_frequencies(inv, base, rotated, factor, trained, f.hp("rope.scaling.yarn_beta_fast", 32.0),
                                           f.hp("rope.scaling.yarn_beta_slow", 1.0), f.arch != "gpt-oss" or f.bug == "ramp_rounded")
            magnitude = (1 + 0.1 * math.log(factor)) * f.hp("rope.scaling.attn_factor", 1.0)
        if f.has("rope_freqs.weight"):
            inv = inv / f.get("rope_freqs.weight")
        if f.has("rope_factors_long.weight"):
            inv = inv / f.get("rope_factors_long.weight" if context > trained else "rope_factors_short.weight")
            grown = f.hp("context_length") / trained
            magnitude = f.hp("rope.scaling.attn_factor",
                             math.sqrt(1 + math.log(grown) / math.log(trained)) if grown > 1 else 1.0)
    if f.bug == "rope_off_by_one":
        inv = np.roll(inv, 1)
    angle = pos[:, None] * inv[None, :]
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


def rope(x, angles, pairs):
    """x [T, H, D]: the first elements of a head, in neighbouring pairs or in two halves."""
    cos, sin = (a[:, None, :] for a in angles)
    half = cos.shape[-1]
    out = x.copy()
    a, b = (x[..., 0:2 * half:2], x[..., 1:2 * half:2]) if pairs else (x[..., :half], x[..., half:2 * half])
    ra, rb = a * cos - b * sin, a * sin + b * cos
    if pairs:
        out[..., 0:2 * half:2], out[..., 1:2 * half:2] = ra, rb
    else:
        out[..., :half], out[..., half:2 * half] = ra, rb
    return out


def soft_cap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def attention(q, k, v, scale, window, cap=0, sinks=None):
    """q [T, H, D], k and v [T, Hkv, D]; token t sees the last `window` tokens up to itself, and where there are sinks [H] one
    more key of that score, which says nothing."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    t = np.arange(n)
    seen = t[None, :] <= t[:, None]
    if window:
        seen &= t[:, None] - t[None, :] < window
    out = np.empty_like(q)
    for h in range(heads):
        s = soft_cap(q[:, h] @ k[:, h // group].T * scale, cap)
        s = np.where(seen, s, -np.inf)
        top = s.max(axis=1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[h])
        p = np.exp(s - top)
        total = p.sum(axis=1, keepdims=True) + (np.exp(sinks[h] - top) if sinks is not None else 0)
        out[:, h] = p / total @ v[:, h // group]
    return out.reshape(n, heads * dim)


def linear(f, x, name):
    y = matmul(x, f.get(name + ".weight"))
    return y + f.get(name + ".bias") if f.has(name + ".bias") else y


def clamped_unit(gate, up, limit):
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)


def experts(f, x, name):
    """The feed-forward unit of a model with experts, token by token; x [T, C]."""
    count, used = f.hp("expert_count"), f.hp("expert_used_count")
    scores = linear(f, x, name + "ffn_gate_inp")
    order = np.argsort(-scores, axis=1, kind="stable")
    lead = np.take_along_axis(scores, order[:, used - 1:used], 1) - np.take_along_axis(scores, order[:, used:used + 1], 1)
    f.margin = np.minimum(f.margin, lead[:, 0] if used < count else math.inf)
    ids = order[:, :used]
    s = np.take_along_axis(scores, ids, 1)
    e = np.exp(s - scores.max(axis=1, keepdims=True))
    of_all = (f.arch == "olmoe") != (f.bug == "shares_of_others")
    over = np.exp(scores - scores.max(axis=1, keepdims=True)) if of_all else e
    shares = e / over.sum(axis=1, keepdims=True)
    if f.bug == "next_expert":
        ids = (ids + 1) % count

    def product(part, x, e):
        y = x @ f.get(f"{name}ffn_{part}_exps.weight")[e].T
        if not f.has(f"{name}ffn_{part}_exps.bias"):
            return y
        return y + f.get(f"{name}ffn_{part}_exps.bias")[(e + 1) % count if f.bug == "bias_of_next" else e]

    out = np.zeros_like(x)
    for e in range(count):
        t, k = np.nonzero(ids == e)
        gate, up = product("gate", x[t], e), product("up", x[t], e)
        if f.bug == "swap_gate_up":
            gate, up = up, gate
        act = clamped_unit(gate, up, math.inf if f.bug == "no_clamp" else 7) if f.arch == "gpt-oss" else silu(gate) * up
        out[t] += shares[t, k][:, None] * product("down", act, e)
    return out


def forward(path, ids, bug=None, context=0, columns=None, margin=False):
    """Logits [T, vocab] in float64, or of the given columns of the head only; with `margin` also by how much each token's
    experts lead those that it leaves, at the least."""
    f = File(path, bug)
    arch = f.arch
    n = len(ids)
    layers, embd, heads = f.hp("block_count"), f.hp("embedding_length"), f.hp("attention.head_count")
    kv_heads = f.hp("attention.head_count_kv", heads)
    dim = f.hp("attention.key_length", embd // heads)
    eps = f.hp("attention.layer_norm_rms_epsilon") * (100 if bug == "norm_eps" else 1)
    ff = f.hp("feed_forward_length")
    window = f.hp("attention.sliding_window", 0) if arch in ("llama", "gemma2", "gemma3", "phi3", "gpt-oss") else 0
    rotated = f.hp("rope.dimension_count", dim)
    gemma, gemma3 = arch in ("gemma2", "gemma3"), arch == "gemma3"
    attn_cap, logit_cap = (f.hp(f"{x}_logit_softcapping", 0) if arch == "gemma2" else 0 for x in ("attn", "final"))
    pos = np.arange(n, dtype=np.float64)
    context = context or n
    whole = rope_angles(f, pos, rotated, f.hp("rope.freq_base", 1e6 if gemma3 else 1e4), context)
    local = rope_angles(f, pos, rotated, f.hp("rope.local.freq_base", 1e4), context, scaled=False) if gemma3 else None
    scale = 1 / math.sqrt(embd / heads if (arch, layers) in (("gemma2", 46), ("gemma3", 62)) else dim)

    x = f.raw("token_embd.weight")[np.asarray(ids)].astype(np.float64)
    if gemma:
        x = x * np.float64(np.float32(math.sqrt(embd)))
    for i in range(layers):
        name = f"blk.{i}."
        is_global = not window or (gemma3 and i % 6 == 5) or (arch in ("gemma2", "gpt-oss") and i % 2 == 1)
        y = rms_norm(x, f.get(name + "attn_norm.weight"), eps)
        if arch == "phi3":
            q, k, v = np.split(linear(f, y, name + "attn_qkv"), [heads * dim, (heads + kv_heads) * dim], axis=1)
        else:
            q, k, v = (linear(f, y, name + "attn_" + part) for part in "qkv")
        if arch == "olmoe":  # over all heads at once
            q, k = (rms_norm(a, f.get(f"{name}attn_{p}_norm.weight"), eps) for a, p in ((q, "q"), (k, "k")))
        q, k, v = q.reshape(n, heads, dim), k.reshape(n, kv_heads, dim), v.reshape(n, kv_heads, dim)
        if arch in ("qwen3", "qwen3moe", "gemma3"):
            q = rms_norm(q, f.get(name + "attn_q_norm.weight"), eps)
            k = rms_norm(k, f.get(name + "attn_k_norm.weight"), eps)
        angles = local if gemma3 and not is_global else whole
        q, k = rope(q, angles, arch == "llama"), rope(k, angles, arch == "llama")
        sinks = f.get(name + "attn_sinks.weight") if arch == "gpt-oss" and bug != "no_sinks" else None
        y = linear(f, attention(q, k, v, scale, 0 if is_global else window, attn_cap, sinks), name + "attn_output")
        if gemma:
            y = rms_norm(y, f.get(name + "post_attention_norm.weight"), eps)
        x = x + y

        y = rms_norm(x, f.get(name + ("post_attention_norm" if arch == "gpt-oss" else "ffn_norm") + ".weight"), eps)
        if f.hp("expert_count", 0):
            x = x + experts(f, y, name)
            continue
        if arch == "phi3":
            gate, up = np.split(linear(f, y, name + "ffn_up"), [ff], axis=1)
        else:
            gate, up = linear(f, y, name + "ffn_gate"), linear(f, y, name + "ffn_up")
        if bug == "swap_gate_up":
            gate, up = up, gate
        y = linear(f, (gelu_tanh if gemma else silu)(gate) * up, name + "ffn_down")
        if gemma:
            y = rms_norm(y, f.get(name + "post_ffw_norm.weight"), eps)
        x = x + y
    x = rms_norm(x, f.get("output_norm.weight"), eps)
    head = f.raw("output.weight" if f.has("output.weight") else "token_embd.weight")
    logits = soft_cap(matmul(x, head if columns is None else head[columns]), logit_cap)
    return (logits, f.margin) if margin else logits


def nmse(got, want):
    return float(np.sum((got - want) ** 2) / np.sum(want ** 2))
