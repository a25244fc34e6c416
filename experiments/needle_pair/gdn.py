"""Gated DeltaNet in the chunked WY form, parallel over chunks, with a log-depth scan over the chunk states.

Gated delta rule (Yang et al. 2024, arXiv:2412.06464), per value head with state S (keys x values): S <- e^g S, then
S <- S + k (b (v - S^T k))^T, o = S^T q. Chunked: T = (I + strict_lower(b K K^T * decay))^-1, U = T b V, W = T b e^G K.
A chunk maps the state affinely, S' = M S + N, so the states at chunk starts are an associative scan.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64


class UnitLowerInverse(torch.autograd.Function):
    """(I + A)^-1 of strictly lower triangular A by block doubling (stable, no pivots)."""

    @staticmethod
    def forward(ctx, a: Tensor) -> Tensor:
        n = a.shape[-1]
        x = torch.ones(*a.shape[:-2], n, 1, 1, device=a.device, dtype=a.dtype)
        s = 1
        while s < n:
            pairs = n // (2 * s)
            block = a.unflatten(-1, (pairs, 2, s)).unflatten(-4, (pairs, 2, s))  # (..., p, 2, s, p, 2, s)
            low = block[..., :, 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)  # (..., p, s, s)
            x11, x22 = x[..., 0::2, :, :], x[..., 1::2, :, :]
            x21 = -(x22 @ (low @ x11)) if s > 1 else -low
            top = torch.cat([x11, torch.zeros_like(x11)], -1)
            x = torch.cat([top, torch.cat([x21, x22], -1)], -2)
            s *= 2
        x = x.squeeze(-3)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        t = x.transpose(-1, -2)
        return -(t @ grad @ t)


def states(m: Tensor, n: Tensor) -> Tensor:
    """States before each chunk of S' = M S + N from zero; (..., chunks, d, d), any number of chunks."""
    count = m.shape[-3]
    if count == 1:
        return torch.zeros_like(n)
    half = count // 2
    m0, n0 = m[..., 0 : 2 * half : 2, :, :], n[..., 0 : 2 * half : 2, :, :]
    m1, n1 = m[..., 1 : 2 * half : 2, :, :], n[..., 1 : 2 * half : 2, :, :]
    mm, nn = (m1 @ m0, m1 @ n0 + n1) if half > 1 or count % 2 else (m0, n0)
    if count % 2:
        mm, nn = torch.cat([mm, m[..., -1:, :, :]], -3), torch.cat([nn, n[..., -1:, :, :]], -3)
    even = states(mm, nn)
    odd = m0 @ even[..., :half, :, :] + n0
    out = torch.stack([even[..., :half, :, :], odd], -3).flatten(-4, -3)
    return torch.cat([out, even[..., half:, :, :]], -3) if count % 2 else out


def gated_delta_net(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """q, k (B, L, Hk, d) normalised, v (B, L, Hv, d), beta, g (B, L, Hv), L a multiple of 64 -> (B, L, Hv, d).

    Value head p uses key head p % Hk.
    """
    b, length, hv, d = v.shape
    hk, n = q.shape[2], length // CHUNK
    rep = hv // hk

    def chunks(x: Tensor) -> Tensor:  # (B, L, H, d) -> (B, H, n, C, d)
        return x.unflatten(1, (n, CHUNK)).permute(0, 3, 1, 2, 4)

    q, k, v = chunks(q).contiguous(), chunks(k).contiguous(), chunks(v)
    beta = beta.unflatten(1, (n, CHUNK)).permute(0, 3, 1, 2)
    total = g.unflatten(1, (n, CHUNK)).permute(0, 3, 1, 2).cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, device=q.device, dtype=torch.bool).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    kk = (k @ k.transpose(-1, -2)).repeat(1, rep, 1, 1, 1)
    qk = (q @ k.transpose(-1, -2)).repeat(1, rep, 1, 1, 1) * decay
    k, q = k.repeat(1, rep, 1, 1, 1), q.repeat(1, rep, 1, 1, 1)
    t = UnitLowerInverse.apply((beta[..., None] * kk * decay).tril(-1))
    e = total.exp()[..., None]
    uw = t @ (torch.cat([v, k * e], -1) * beta[..., None])
    out = qk @ uw
    if n == 1:
        o = out[..., :d]
    else:
        last = total[..., -1:]
        kd = (k * (last - total).exp()[..., None]).transpose(-1, -2)
        mn = kd @ uw
        eye = torch.eye(d, device=q.device, dtype=q.dtype)
        s = states(eye * last[..., None].exp() - mn[..., d:], mn[..., :d])
        o = out[..., :d] + (q * e - out[..., d:]) @ s
    return o.permute(0, 2, 3, 1, 4).reshape(b, length, hv, d)


def recurrent(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor) -> Tensor:
    """The definition, token by token (reference for the test)."""
    b, length, hv, d = v.shape
    rep = hv // q.shape[2]
    s = v.new_zeros(b, hv, d, d)
    out = []
    for i in range(length):
        ki, qi = k[:, i].repeat(1, rep, 1), q[:, i].repeat(1, rep, 1)
        s = s * g[:, i, :, None, None].exp()
        delta = beta[:, i, :, None] * (v[:, i] - torch.einsum("bhk,bhkv->bhv", ki, s))
        s = s + ki[..., None] * delta[..., None, :]
        out.append(torch.einsum("bhk,bhkv->bhv", qi, s))
    return torch.stack(out, 1)
