# SPDX-License-Identifier: Apache-2.0
"""How the numbers of the README, docs/benchmarking.md and docs/settings.md follow from the files of bench/results.

A function gets the rows of each file that a page names, of the commit that it names, and returns what the page says:
its numbers as text, in the page's order. check_numbers.py compares.
"""

import re
from statistics import median

TRACES = ("gpt2_medium_var_batch_seq", "llama_1b_lora_recompute", "resnet50_var_batch_res", "vit_multistream_record",
          "fsdp2_llama")
LAGGED = (*TRACES, "fsdp", "offload", "oneshot")
MIB = 1 << 20
GRANULES = ["sizes=2M"]
TIGHT = ["sizes=tight"]  # as rows from before that call it


def where(rows, **wanted):
    """Rows that have these values; `settings` is none unless asked for."""
    wanted.setdefault("settings", [])
    return [row for row in rows if all((row.get(key) or type(value)()) == value for key, value in wanted.items())]


def one(rows, **wanted):
    (row,) = where(rows, **wanted)
    return row


def span(values, form="{:,.0f}"):
    """`from LEAST to MOST`, however the page joins them."""
    values = list(values)
    return [form.format(min(values)), form.format(max(values))]


# ---- The README ------------------------------------------------------------------------------


def readme_replay(rows):
    """What `ductile-gpu replay` prints: events from 1, which rows count from 0."""
    program = where(rows, trace="requests", capacity_bytes=5700 * MIB)
    events, live = f"{program[0]['events']:,}", gib(program[0]["live_peak_bytes"])
    yield gib(program[0]["capacity_bytes"]), events, live
    for name in ("classic", "expandable"):
        yield f"{one(program, contender=name, completed=False)['stopped_at_event'] + 1:,}", events
    own = one(program, contender="ductile", completed=True)
    yield gib(own["reserved_peak_bytes"]), f"{100 * own['efficiency']:.1f}"


def readme_refused(rows):
    """Need and cap of programs that only Ductile ends; seven of nine are refused under expandable segments."""
    found = settings_rows([rows], "dies")
    runs = {program: [bool(found[program, way].get("refused")) for way in ALLOCATORS] for program in DYING}
    if (len(runs), [sum(way) for way in zip(*runs.values())][1:]) != (9, [7, 0]):
        raise ValueError(f"refused under each: {runs}")
    for program in ("requests", "shapes", "outputs", "pool", "libraries"):
        if runs[program] != [True, True, False]:
            raise ValueError(f"{program} is not refused by both of PyTorch's")
        own = found[program, "native"]
        yield gib(own["needs"]), gib(own["cap"]) if own["cap"] else []


def readme_held(rows):
    for trace in ("llama_1b_lora_recompute", "fsdp2_llama", "gpt2_medium_var_batch_seq", "resnet50_var_batch_res",
                  "vit_multistream_record"):
        yield [f"{one(rows, trace=trace, contender=name)['reserved_peak_bytes'] / (1 << 30):.1f}"
               for name in ("ductile", "expandable", "classic")]


def readme_smallest(rows):
    """Per cent by which the smallest device is smaller than with expandable segments at least, and at most."""
    needed = [[one(rows, trace=trace, contender=name)["min_capacity_bytes"] for name in ("ductile", "expandable")]
              for trace in TRACES]
    less = [100 * (1 - own / theirs) for own, theirs in needed]
    return f"{min(less):.1f}", f"{max(less):.1f}"


def own_ns(rows, peer):
    """Nanoseconds of a call without driver calls, of each trace: medians of the turns."""
    return [median(row["ns_per_op"] for row in rows if row["peer"] == peer and row["trace"] == trace
                   and "turn" in row) for trace in TRACES[:4]]


def all_calls(rows):
    torch = own_ns(rows, "torch-expandable") + own_ns(rows, "torch-native")
    return [span(own_ns(rows, "ductile")), span(own_ns(rows, "torch-ductile")), span(torch)]


def spilling_percent(rows, program, share):
    """By how much a step is longer at a share of the live peak, where it spills."""
    free, capped = (one(rows, part=program, way="ductile+spill", variant="plain", share=s)["ms"] for s in (0, share))
    return 100 * (capped / free - 1)


def first_driver_ms(rows, name):
    plain = [row for row in where(rows, contender=name) if not row.get("settings")]
    return span(row["first_pass"]["driver_time_us"] / 1000 for row in plain)


def readme_cost(moving, sharded, spilling, tight, tight_others, replay):
    """Of how many programs the step is native's, within the noise; the most that the host's calls take of it, but with
    streams of their own, and there; at most in FSDP2; one that spills; the first pass, with room and near the limit."""
    own = {row["program"]: row for row in moving if row["way"] == "ductile" and row["program"] in MOVES}
    if slower := [name for name, row in own.items() if row["of_native"] - row["of_native_noise"] > 1]:
        raise ValueError(f"these are slower: {slower}")
    others = [row["costs_percent"] for name, row in own.items() if name != "streams"]
    yield len(own), f"{max(others):.1f}", f"{own['streams']['costs_percent']:.0f}"
    ways = {row["way"]: row for row in sharded}
    yield bound_percent(ways["ductile"], ways["expandable"])
    yield 5, f"{spilling_percent(spilling, 'gpt2', 0.95):.0f}"
    yield first_driver_ms(replay, "ductile"), first_driver_ms(replay, "expandable")
    near = [row for row in (*tight, *tight_others) if "above_min_percent" in row]
    yield first_driver_ms(near, "ductile"), first_driver_ms(near, "expandable")


# ---- Every peer in one run -------------------------------------------------------------------

PEERS = ("ductile", "ductile-tight", "torch-ductile", "torch-expandable", "torch-native", "torch-async", "rmm-pool",
         "rmm-arena", "cumemallocasync", "expandable", "classic")


def turns(rows, peer, trace, figure):
    return [figure(row) for row in rows if row["peer"] == peer and row["trace"] == trace and "turn" in row]


def all_ms(row):
    return row["all_passes"]["wall_us"] / 1000


def range_of(values):
    low, high = span(values, "{:.3f}")
    return [low] if low == high else [low, high]


def with_spread(values):
    return [f"{median(values):,.0f}", span(values)]


def peers(rows):
    traces = ("fsdp2_llama", *TRACES[:4])
    for peer in PEERS:
        capacities = [row["min_capacity_efficiency"] for row in rows
                      if row["peer"] == peer and row.get("min_capacity_efficiency")]
        yield [range_of(median(turns(rows, peer, trace, lambda row: row["efficiency"])) for trace in traces),
               range_of(capacities) if capacities else [],
               [with_spread(turns(rows, peer, trace, all_ms)) for trace in traces]]


def peers_missed(rows):
    return [25, [f"{ns:.1f}" for ns in own_ns(rows, "ductile")[:3]]]


# ---- Where a user feels it -------------------------------------------------------------------

PROGRAMS = ("gpt2", "lora", "resnet", "moe", "graph")


def first_five(rows, program, allocator):
    return [sum(row["times_ms"][:5]) for row in rows
            if (row["part"], row["model"], row["allocator"]) == ("first", program, allocator)]


def first_steps(rows):
    for allocator in ("ductile", "expandable"):
        yield [[f"{ms:,.0f}" for ms in first_five(rows, program, allocator)] for program in PROGRAMS]
    yield [f"{median(first_five(rows, program, 'ductile')) / median(first_five(rows, program, 'expandable')):.2f}"
           for program in PROGRAMS]


# ---- Near the smallest capacity --------------------------------------------------------------

THREE = (("ductile", []), ("ductile", TIGHT), ("expandable", []))


def near_and_uncapped(rows, ways, parts, figure):
    for near, efficiency in ((True, "min_capacity_efficiency"), (False, "efficiency")):
        for name, settings in ways:
            for trace in TRACES:
                (row,) = [row for row in where(rows, contender=name, settings=settings, trace=trace)
                          if ("above_min_percent" in row) == near]
                yield [f"{row[part][figure] / 1000:,.0f}" for part in parts], f"{row[efficiency]:.3f}"


def tight(rows):
    return list(near_and_uncapped(rows, THREE, ("first_pass", "all_passes"), "wall_us"))


def tight_modelled(own, others):
    """The same by the present default; rows of the others, which are as they were, call the smallest handles by their
    size."""
    ways = (("ductile", []), ("ductile", GRANULES), ("expandable", []))
    return list(near_and_uncapped([*own, *others], ways, ("first_pass", "last_pass"), "driver_time_us"))


# ---- Two streams and a host that runs ahead --------------------------------------------------


def ends(texts):
    """The least and the most, once where they are the same."""
    numbers = sorted(set(texts), key=lambda text: float(text.replace(",", "")))
    return numbers[:1] + numbers[1:][-1:]


def held_mib(rows, **wanted):
    return ends(f"{row['reserved_peak_bytes'] / MIB:,.0f}" for row in where(rows, **wanted))


POLL, WAIT = ["record_stream=poll"], ["record_stream=wait"]
# Of the virtual GPU and of the H200, whose rows are older than `sizes`.
SHARDED = (("ductile", POLL, None), ("ductile", WAIT, None), ("ductile", [*GRANULES, *POLL], POLL),
           ("ductile", [*GRANULES, *WAIT], WAIT), ("expandable", [], []), ("classic", [], []))


def sharded_cell(rows, **wanted):
    return [held_mib(rows, **wanted), ends(f"{row['overlap']:.2f}" for row in where(rows, **wanted))]


def sharded(virtual, hardware):
    for name, settings, older in SHARDED:
        yield sharded_cell(virtual, contender=name, settings=settings, hold=1)
        if older is not None:
            yield sharded_cell(hardware, contender=name, settings=older, device="NVIDIA H200")


LIMITED = (("ductile", POLL), ("ductile", WAIT), ("expandable", []), ("classic", []))


def limiter_cell(rows, **wanted):
    found = where(rows, **wanted)
    return [held_mib(rows, **wanted), ends(f"{row['overlap']:.2f}" for row in found),
            ends(f"{row['gap_mean_us']:.1f}" for row in found), ends(f"{row['gap_most_us']:,.0f}" for row in found)]


def limiter(rows):
    for name, settings in LIMITED:
        yield [limiter_cell(rows, contender=name, settings=settings, limiter=n) for n in (0, 4)]


# ---- Ranks ---------------------------------------------------------------------------------------

RANK = re.compile(r"\| (recorded|generated) \| (\d+) \| ([\d,]+) \|(.*)\|$")


def ranks(lines):
    """The lines of single ranks, as they were printed."""
    found = [match.groups() for match in map(RANK.match, lines) if match]
    return [[rank, lag, cells] for run, rank, lag, cells in found if run == "recorded"]


# ---- What lag costs --------------------------------------------------------------------------

LAGS = (0, 100, 10000)


def lag_ways(first, second):
    """Of both commits: the second has the replays with cross_stream_reuse=wait."""
    ways = ((first, [*TIGHT, *POLL]), (first, [*TIGHT, "cross_stream_reuse=off"]),
            (second, [*TIGHT, "cross_stream_reuse=wait"]), (first, [*TIGHT, *WAIT]))
    for trace in LAGGED:
        for rows, settings in ways:
            yield [f"{one(rows, trace=trace, settings=settings, lag=n)['efficiency']:.4f}" for n in LAGS]


# ---- Streams that fall silent or end ---------------------------------------------------------


def silent(rows):
    for words in ("offload --streams 1 ", "offload --streams 10 ", "oneshot --end told ", "oneshot --end untold "):
        of_it = [row for row in rows if words in row["command"]]
        yield words.split()[2] if "streams" in words else []
        yield f"{of_it[0]['live_peak_bytes'] / MIB:,.0f}"
        for name, settings in (("ductile", []), ("ductile", GRANULES), ("expandable", []), ("classic", [])):
            yield held_mib(of_it, contender=name, settings=settings)


# ---- Training programs -----------------------------------------------------------------------

TRAINED = re.compile(r"(\w+) +(\w+) .*? ([\d.]+) \+-([\d.]+) of native .* \(\+([\d.]+) %\)")


def trained(lines):
    found = {match.group(1, 2): match.group(3, 4, 5) for match in map(TRAINED.match, lines) if match}
    for model in ("gpt2", "resnet", "lora"):
        yield found[model, "native"][2]
        for allocator in ("expandable", "ductile"):
            time, noise, more = found[model, allocator]
            yield more, time, noise


# ---- A Llama on two GPUs ---------------------------------------------------------------------

# By default, with reuse:wait, with sizes:2M beside it, expandable segments, native; as rows of each time call them.
OLDER_WAYS = ("ductile", "ductile+cross_stream_reuse:wait", "ductile+sizes:tight+cross_stream_reuse:wait", "expandable",
              "native")
WAYS = ("ductile", "ductile+reuse:wait", "ductile+sizes:2M+reuse:wait", "expandable", "native")


def llama(rows, case, ways):
    of_it = {row["way"]: row for row in rows if row["case"] == case}
    return [f"{of_it[way]['efficiency']:.3f}" for way in ways if way in of_it]


def llama_table(newest, before, older, compiled):
    yield [llama(newest, "fsdp2", WAYS), llama(newest, "tp", WAYS), llama(before, "fsdp2", OLDER_WAYS)]
    yield [llama(older, "moe", OLDER_WAYS), llama(compiled, "compiled", OLDER_WAYS), llama(older, "ddp", OLDER_WAYS)]


def llama_step(row):
    return f"{row['efficiency']:.3f}", f"{row['of_first']:.2f}", f"{row['of_first_noise']:.2f}"


def llama_steps(newest, before):
    """Of each way, by the present default where it ran and by the one before."""
    now = {row["way"]: row for row in newest if row["case"] == "fsdp2"}
    then = {row["way"]: row for row in before if row["case"] == "fsdp2" or row["way"] == "capped ductile"}
    for way, older in (("native", "native"), ("expandable", "expandable"), ("ductile", "ductile"),
                       ("ductile+reuse:wait", "ductile+cross_stream_reuse:wait"), (None, "ductile+sizes:tight"),
                       (None, "ductile+sizes:tight+cross_stream_reuse:wait"), (None, "capped ductile")):
        yield llama_step(now[way]) if way else [], llama_step(then[older])


def llama_wait(rows):
    """Used over held of FSDP2, with reuse:wait and without."""
    return llama(rows, "fsdp2", WAYS)[1::-1]


def llama_sleeps(rows):
    """Seconds of a sleep and a wake of the slowest rank, medians; GB of all ranks, and how many a second."""
    (row,) = [row for row in rows if row["case"] == "asleep"]
    slow = [max(map(median, row[name])) for name in ("sleep_s", "wake_s")]
    whole = sum(map(median, row["bytes"])) / 1e9
    yield [f"{seconds:.3f}" for seconds in slow], f"{whole:.1f}", [f"{whole / seconds:.0f}" for seconds in slow]


# ---- FSDP on two GPUs, without its rate limiter and with it ------------------------------------


def fsdp1(rows):
    """Of each way: without the limiter and with it, MiB held, used over held, step of native's, the gap, the wait."""
    for way in ("native", "expandable", "ductile", "ductile+reuse:wait"):
        for case in ("fsdp1-unlimited", "fsdp1"):
            (row,) = [row for row in rows if (row["case"], row["way"]) == (case, way)]
            yield f"{row['held_mib']:,.0f}", f"{row['of_first']:.2f}", f"{row['of_first_noise']:.2f}"
            yield [f"{us:.0f}" for us in (*row["gap_us"], *row["alloc_us"])]


# ---- Long runs ---------------------------------------------------------------------------------

# What are swings of the balloon is called breaths in the soaks recorded so far, and what are sleeps pauses.
SOAK = re.compile(r"(ops|pauses|sleeps|graphs_launched|breaths|swings|mismatches) (\d+)$")
SINCE = {"breaths": "swings", "pauses": "sleeps"}
SAMPLE = re.compile(r"\d+ operations: \d+ ns each, (\d+) KiB resident, (\d+) KiB bookkeeping, .* (\d+) MiB addresses")


def soak(*runs):
    """Of each piece, which ends with the word passed: counts, and what its first samples but two and its last said of
    what has to stay flat."""
    for lines in filter(None, (piece.strip() for run in runs for piece in "\n".join(run).split("\npassed"))):
        lines = lines.splitlines()
        found = {SINCE.get(match[1], match[1]): int(match[2]) for match in map(SOAK.match, lines) if match}
        yield [f"{found[name]:,}" for name in ("ops", "graphs_launched", "sleeps", "swings", "mismatches")]
        samples = [[int(word) for word in match.groups()] for match in map(SAMPLE.match, lines) if match]
        for n in range(2):
            yield [f"{sample[n]:,}" for sample in (samples[2], samples[-1])]


def lasting(*pieces):
    """Of each allocator the figures of each training, which begins with a first piece, and of all of them."""
    trainings = []
    for rows in pieces:
        if rows[0]["piece"] == 1:
            trainings.append([])
        trainings[-1] += rows
    for name in ("ductile", "expandable"):
        own = [[row for row in rows if row["allocator"] == name] for rows in trainings]
        own = list(filter(None, own))
        for one in own:
            yield lasted(one)
        yield lasted(*own)


def lasted(*trainings):
    """Minutes, steps, most held, used over held, median step, retries, refusals, caught."""
    rows = [row for training in trainings for row in training]
    last = {key: sum(training[-1][key] for training in trainings)
            for key in ("seconds", "step", "retries", "refusals", "caught")}
    yield f"{last['seconds'] / 60:.1f}", f"{last['step']:,}", gib(max(row["held"] for row in rows))
    yield f"{sum(row['used'] for row in rows) / sum(row['held'] for row in rows):.3f}"
    yield f"{median(row['step_ms'] for row in rows):.0f}", last["retries"], last["refusals"], last["caught"]


# ---- Which setting for which program ---------------------------------------------------------

ALLOCATORS = ("native", "expandable", "ductile")
SMALLEST = "ductile+sizes:2M"
SLOWER = ("training", "lora", "images", "moe", "streams", "serving", "growing", "fsdp2")
# Of which a busy GPU hides the most, as the page has them.
SHOWN = (("streams", "ductile"), ("streams", SMALLEST), ("serving", SMALLEST))


def gib(n_bytes):
    return f"{n_bytes / (1 << 30):.2f}"


def settings_rows(runs, part):
    """{(program, way): row} of all runs of settings.py, without those that failed; of two the later one."""
    return {(row["program"], row["way"]): row for rows in runs for row in rows
            if row["part"] == part and "error" not in row}


def of_native(row):
    return [f"{row['of_native']:.3f}", f"{row['of_native_noise']:.3f}"]


def slower_ways(runs):
    """(program, way, row) of slower.py's rows, in the page's order."""
    found = {(row["program"], row["way"]): row for rows in runs for row in rows if "step_ms" in row}
    for program in SLOWER:
        for way in (*ALLOCATORS, SMALLEST):
            if (program, way) in found:
                yield program, way, found[program, way]


def in_allocator_ms(row):
    """Of a step, without driver calls."""
    return row["allocs"] * row["pair_ns"] / 1e6


def shown_cost(row):
    return f"{row['costs_percent']:.1f}" if row["costs_percent"] >= 0.05 else []


def slower(*runs):
    """Of each program and way: ms of a step; kernels, of native's; per cent that the GPU is busy; ms of the host in the
    allocator and in the driver; mappings and moves; per cent that it costs, where that is any."""
    for _, way, row in slower_ways(runs):
        driver = row["driver_ms"] if "driver_ms" in row else row["profiled_memory_call_ms"]
        yield f"{row['step_ms']:.1f}", f"{row['kernels_of_native']:.3f}" if way != "native" else []
        yield f"{100 * row['profiled_busy_ms'] / row['profiled_span_ms']:.0f}"
        yield f"{in_allocator_ms(row):.2f}", f"{driver:.2f}"
        yield [f"{row[name]:.1f}" for name in ("maps", "moved") if way.startswith("ductile")]
        yield shown_cost(row)


def slower_shown(*runs):
    """Per cent by which a step is longer than native's, and its noise."""
    found = {(program, way): row for program, way, row in slower_ways(runs)}
    return [[f"{100 * (row['of_native'] - 1):.1f}", f"{100 * row['of_native_noise']:.1f}"]
            for row in map(found.get, SHOWN)]


MOVES = ("images", "moe", "graph", "lstm", "policy", "serving", "streams")


def moves(rows):
    """Of each program on steps that vary: native's step in ms; Ductile's, of it, and the noise; kernels, of native's; ms of
    the host in the allocator and in the driver; mappings; per cent that it costs, where that is any; GiB used, and
    held under native and Ductile."""
    found = {(row["program"], row["way"]): row for row in rows}
    for program in MOVES:
        native, own = found[program, "native"], found[program, "ductile"]
        yield f"{native['step_ms']:.1f}", f"{own['of_native']:.3f}", f"{own['of_native_noise']:.3f}"
        yield f"{own['kernels_of_native']:.3f}", f"{in_allocator_ms(own):.2f}", f"{own['driver_ms']:.2f}"
        yield f"{own['maps']:.1f}", shown_cost(own)
        yield gib(own["used"]), gib(native["held"]), gib(own["held"])


def moves_compiled(rows):
    """Held, of what is used, by the default and with `sizes:2M`; by expandable segments."""
    found = {row["way"]: row for row in rows if row["program"] == "compiled"}
    if found["ductile"]["held"] != found[SMALLEST]["held"]:
        raise ValueError("the default holds what sizes:2M does not")
    return [f"{found[way]['held'] / found[way]['used']:.3f}" for way in ("ductile", "expandable")]


def moves_gaps(rows):
    """Of three programs in one run: ms in driver calls before and after more gaps are filled; then the steps."""
    found = {(row["program"], row["way"]): row for row in rows}
    pairs = [(found[program, "before"], found[program, "ductile"]) for program in ("images", "streams", "serving")]
    for name, digits in (("driver_ms", 2), ("step_ms", 1)):
        yield [f"{row[name]:.{digits}f}" for pair in pairs for row in pair]


def moves_growing(rows):
    """Used, and held by the default, expandable segments and native; a step of native's, and its noise."""
    found = {row["way"]: row for row in rows if row["program"] == "growing"}
    own = found["ductile"]
    yield gib(own["held"]), gib(own["used"]), gib(found["expandable"]["held"]), gib(found["native"]["held"])
    yield of_native(own)


HELD = ("fsdp2", "streams", "compiled")


def moves_held(rows):
    """Of each program: what was held when it was most, and what of that was in use, pending, movable and stranded."""
    found = {row["program"]: row["at_most"] for row in rows if row["way"] == "ductile"}
    for program in HELD:
        most = found[program]
        yield gib(most["held"]), gib(most["live"]), [gib(most["pending"])] if most["pending"] else []
        yield f"{most['movable'] / (1 << 30):.2f}", f"{most['stranded'] / (1 << 30):.3f}"


def bound_percent(row, other):
    """Host time in the allocator and the driver beyond the other's, of its step."""
    more = row["driver_ms"] + in_allocator_ms(row) - in_allocator_ms(other)
    return f"{100 * more / other['step_ms']:.1f}"


def moves_sharded(rows):
    """A rank's share of what is held that is in use, by the default, the one before, and expandable segments; mappings
    and ms of the driver of a step, now and before; per cent that they may cost beside expandable segments."""
    found = {row["way"]: row for row in rows}
    own, before, other = (found[way] for way in ("ductile", "before", "expandable"))
    yield [f"{row['used'] / row['held']:.3f}" for row in (own, before, other)]
    yield [[f"{row['maps']:.0f}", f"{row['driver_ms']:.1f}"] for row in (own, before)]
    yield [bound_percent(row, other) for row in (own, before)]


# Programs of settings.py, in the page's order.
PLAIN = ("training", "lora", "images", "streams", "serving", "growing", "notebook", "small", "libraries")


def settings_held(*runs):
    """Of each program: used under Ductile, held under each allocator; work of Ductile in a second, of native's."""
    found = settings_rows(runs, "speed")
    for program in PLAIN:
        own = found[program, "ductile"]
        yield gib(own["used"]), [gib(found[program, way]["held"]) for way in ALLOCATORS], of_native(own)


def settings_wait(*runs):
    """Of streams of their own with `record_stream:wait`: used and held, and per cent slower; and without it."""
    found = settings_rows(runs, "speed")
    wait = found["streams", "ductile+record_stream:wait"]
    yield gib(wait["held"]), gib(wait["used"])
    for row in (wait, found["streams", "ductile"]):
        yield f"{100 * (1 - row['of_native']):.1f}", f"{100 * row['of_native_noise']:.1f}"


DYING = ("requests", "shapes", "random", "batches", "outputs", "pool", "libraries", "walk", "streams")
TORCH_NEAR = ("training", "lora", "images", "streams", "growing")


def ended(row):
    """`refused` has no number; what ended, its retries."""
    return [] if row.get("refused") else row["retries"]


def settings_dying(*runs):
    found = settings_rows(runs, "dies")
    for program in DYING:
        own = [found[program, way] for way in ALLOCATORS]
        yield gib(own[0]["needs"]), gib(own[0]["cap"]) if own[0]["cap"] else [], [ended(row) for row in own]


def settings_costs(*runs):
    """Milliseconds of the two that end under both, expandable segments and Ductile."""
    found = settings_rows(runs, "dies")
    return [[f"{found[program, way]['ms']:.0f}" for way in ALLOCATORS[1:]] for program in ("walk", "streams")]


def settings_near(*runs):
    found = settings_rows(runs, "near")
    for program in TORCH_NEAR:
        own = [found.get((program, way)) for way in ("expandable", "ductile")]
        if all(own):
            yield gib(own[0]["cap"]), [[row["refusals"], row["retries"], f"{row['ms']:.0f}"] for row in own]


def settings_near_wait(*runs):
    """Steps refused, retries and milliseconds of the program with streams of its own, told to wait."""
    row = settings_rows(runs, "near")["streams", "ductile+record_stream:wait"]
    return row["refusals"], row["retries"], f"{row['ms']:.0f}"


CAPPED = (*TRACES[:1], *TRACES[2:4], "fsdp2_llama", "fsdp", "oneshot", "llama_1b_lora_recompute", "offload")


def settings_traces(rows):
    for trace in CAPPED:
        yield f"{where(rows, trace=trace, contender='ductile')[0]['capacity_bytes'] / MIB:,.0f}"
        for name in ("expandable", "ductile"):
            row = one(rows, trace=trace, contender=name)
            yield row["stream_syncs"] if row["completed"] else []
