"""A cache is an immutable value, although caches share a buffer."""

import torch

from fusetk.nn.cache import Cache


def test_continuations_of_a_cache_do_not_change_each_other() -> None:
    a, b, c, d = (torch.full((2, length, 3), float(length)) for length in (4, 1, 2, 3))
    with torch.inference_mode():
        start = Cache(torch.empty(2, 0, 3), 0).append(a)
        first, second = start.append(b), start.append(c)
        longer, other = first.append(d), first.append(c)
    for cache, parts in (
        (start, (a,)),
        (first, (a, b)),
        (second, (a, c)),
        (longer, (a, b, d)),
        (other, (a, b, c)),
    ):
        assert torch.equal(cache.read(), torch.cat(parts, 1))


def test_the_newest_cache_continues_in_its_buffer() -> None:
    with torch.inference_mode():
        cache = Cache(torch.empty(1, 0, 1), 0).append(torch.ones(1, 5, 1))
        cache = cache.append(torch.ones(1, 1, 1))  # copies, and adds free slots
        longer = cache.append(torch.ones(1, 1, 1))
    assert longer.buffer is cache.buffer and longer.length == 7
