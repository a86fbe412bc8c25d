# SPDX-License-Identifier: Apache-2.0
"""Reports: one file that says why memory ran out, what would fit, and who holds it.

_collect    replays recordings and gathers what the report shows
_summary    the numbers that the verdict, the page and --json say
_frames     what call stacks are called
_who        who holds the memory, by stack, category, stream
_forecast   the largest batch that fits
_ranks      several recordings side by side
_verdict    the diagnosis in one word
_pools      what pools keep for themselves
_words      the sentences
_page       one HTML file of it all
"""

from __future__ import annotations

from ductile_gpu._tools._report._collect import Recording, collect
from ductile_gpu._tools._report._page import make_page, write_page

__all__ = ["Recording", "collect", "make_page", "write_page"]
