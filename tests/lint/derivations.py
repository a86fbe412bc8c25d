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
TIGHT = ["sizes=tight"]


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


def percent_less(less, more):
    return round(100 * (1 - less / more))


# ---- The README ------------------------------------------------------------------------------


def readme_picture(rows):
    held = [{name: one(rows, trace=trace, contender=name) for name in ("ductile", "expandable", "classic")}
            for trace in TRACES]
    needed = [{name: row["min_capacity_bytes"] for name, row in run.items()} for run in held]
    against_native = [100 * (1 - run["ductile"] / run["classic"]) for run in needed]
    against_expandable = [100 * (1 - run["ductile"] / run["expandable"]) for run in needed]
    return [
        [percent_less(run["ductile"]["reserved_peak_bytes"], run["classic"]["reserved_peak_bytes"]) for run in held],
        span(against_native, "{:.1f}"),
        f"{-min(against_expandable):.1f}", f"{max(against_expandable):.1f}",
    ]


def first_pass_ms(rows, name):
    near = [row for row in where(rows, contender=name) if "above_min_percent" in row]
    return [row["first_pass"]["wall_us"] / 1000 for row in near]


def own_ns(rows, peer):
    """Nanoseconds of a call without driver calls, of each trace: medians of the turns."""
    return [median(row["ns_per_op"] for row in rows if row["peer"] == peer and row["trace"] == trace
                   and "turn" in row) for trace in TRACES[:4]]


def all_calls(rows):
    torch = own_ns(rows, "torch-expandable") + own_ns(rows, "torch-native")
    return [span(own_ns(rows, "ductile")), span(own_ns(rows, "torch-ductile")), span(torch)]


def readme_cost(tight, compare):
    return [span(first_pass_ms(tight, "ductile")), span(first_pass_ms(tight, "expandable")), all_calls(compare)]


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


def tight(rows):
    for near, efficiency in ((True, "min_capacity_efficiency"), (False, "efficiency")):
        for name, settings in THREE:
            for trace in TRACES:
                (row,) = [row for row in where(rows, contender=name, settings=settings, trace=trace)
                          if ("above_min_percent" in row) == near]
                yield [f"{row[part]['wall_us'] / 1000:,.0f}" for part in ("first_pass", "all_passes")]
                yield f"{row[efficiency]:.3f}"


# ---- Two streams and a host that runs ahead --------------------------------------------------


def ends(texts):
    """The least and the most, once where they are the same."""
    numbers = sorted(set(texts), key=lambda text: float(text.replace(",", "")))
    return numbers[:1] + numbers[1:][-1:]


def held_mib(rows, **wanted):
    return ends(f"{row['reserved_peak_bytes'] / MIB:,.0f}" for row in where(rows, **wanted))


POLL, WAIT = ["record_stream=poll"], ["record_stream=wait"]
# Of the virtual GPU and of the H200, whose rows are older than `sizes`.
SHARDED = (("ductile", POLL, None), ("ductile", WAIT, None), ("ductile", [*TIGHT, *POLL], POLL),
           ("ductile", [*TIGHT, *WAIT], WAIT), ("expandable", [], []), ("classic", [], []))


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
        for name, settings in (("ductile", []), ("ductile", TIGHT), ("expandable", []), ("classic", [])):
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

WAYS = ("ductile", "ductile+sizes:tight+cross_stream_reuse:wait", "expandable", "native")


def llama(rows, case):
    of_it = {row["way"]: row for row in rows if row["case"] == case}
    return [f"{of_it[way]['efficiency']:.3f}" for way in WAYS if way in of_it]


def llama_table(newest, older, compiled):
    return [llama(newest, "fsdp2"), llama(older, "moe"), llama(compiled, "compiled"), llama(older, "ddp")]


def llama_step(row):
    return f"{row['efficiency']:.3f}", f"{row['of_first']:.2f}", f"{row['of_first_noise']:.2f}"


def llama_steps(rows):
    for way in ("native", "expandable", "ductile", "ductile+sizes:tight", "ductile+cross_stream_reuse:wait",
                "ductile+sizes:tight+cross_stream_reuse:wait"):
        (row,) = [row for row in rows if (row["case"], row["way"]) == ("fsdp2", way)]
        yield llama_step(row)
    (row,) = [row for row in rows if row["way"] == "capped ductile"]
    yield llama_step(row)


# ---- FSDP on two GPUs, without its rate limiter and with it ------------------------------------


def fsdp1(rows):
    """Of each way: without the limiter and with it, MiB held, used over held, step of native's, the gap, the wait."""
    for way in ("native", "expandable", "ductile", "ductile+reuse:wait"):
        for case in ("fsdp1-unlimited", "fsdp1"):
            (row,) = [row for row in rows if (row["case"], row["way"]) == (case, way)]
            yield f"{row['held_mib']:,.0f}", f"{row['of_first']:.2f}", f"{row['of_first_noise']:.2f}"
            yield [f"{us:.0f}" for us in (*row["gap_us"], *row["alloc_us"])]


# ---- Long runs ---------------------------------------------------------------------------------

SOAK = re.compile(r"(ops|pauses|graphs_launched|breaths|mismatches) (\d+)$")
SAMPLE = re.compile(r"\d+ operations: \d+ ns each, (\d+) KiB resident, (\d+) KiB bookkeeping, .* (\d+) MiB addresses")


def soak(*runs):
    """Of each piece, which ends with the word passed: counts, and what its first samples but two and its last said of
    what has to stay flat."""
    for lines in filter(None, (piece.strip() for run in runs for piece in "\n".join(run).split("\npassed"))):
        lines = lines.splitlines()
        found = {match[1]: int(match[2]) for match in map(SOAK.match, lines) if match}
        yield [f"{found[name]:,}" for name in ("ops", "graphs_launched", "pauses", "breaths", "mismatches")]
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

PROGRAM_ORDER = ("training", "lora", "images", "streams", "serving", "growing", "notebook", "small", "libraries")
ALLOCATORS = ("native", "expandable", "ductile")
# As the page has them.
SLOWER = (("streams", "ductile"), ("streams", "ductile+record_stream:wait"), ("serving", "ductile+sizes:tight"))
FASTER = (("notebook", "ductile"), ("notebook", "expandable"), ("lora", "ductile"), ("growing", "expandable"),
          ("images", "ductile"), ("images", "expandable"), ("serving", "ductile"))


def gib(n_bytes):
    return f"{n_bytes / (1 << 30):.2f}"


def settings_rows(runs, part):
    """{(program, way): row} of all runs of settings.py, without those that failed; of two the later one."""
    return {(row["program"], row["way"]): row for rows in runs for row in rows
            if row["part"] == part and "error" not in row}


def of_native(row):
    return [f"{row['of_native']:.3f}", f"{row['of_native_noise']:.3f}"]


def settings_speed(*runs):
    """Of each program: used, held, done in a second, and that of native's; then with an option."""
    found = settings_rows(runs, "speed")
    for program in PROGRAM_ORDER:
        own = {way: row for (name, way), row in found.items() if name == program}
        for way in [*ALLOCATORS, *(way for way in own if "+" in way)] if own else ():
            row = own[way]
            yield [gib(row["used"]), gib(row["held"])]
            yield f"{row['per_second']:,.0f}" if "per_second" in row else []
            yield of_native(row) if way != "native" and "of_native" in row else []


def settings_slower(*runs):
    """Percent, of those whose interval does not reach native: of each run that has them."""
    each = [settings_rows([rows], "speed") for rows in runs]
    for found in each:
        slower = [key for key, row in found.items() if row.get("of_native", 1) + row.get("of_native_noise", 0) < 1]
        assert not slower or sorted(slower) == sorted(SLOWER), slower
    return [[f"{100 * (1 - found[key]['of_native']):.1f}" for found in each if key in found] for key in SLOWER]


def settings_slower_turns(*runs):
    """Milliseconds of the first and the last turn of a server with `sizes:tight`, run by run."""
    every = [settings_rows([rows], "speed").get(("serving", "ductile+sizes:tight")) for rows in runs]
    return [[f"{row['turns_ms'][at]:.0f}" for at in (0, -1)] for row in every if row]


def settings_faster(*runs):
    """The same of those that are faster."""
    found = settings_rows(runs, "speed")
    faster = {key: row for key, row in found.items()
              if row.get("of_native", 1) - row.get("of_native_noise", 0) > 1}
    assert sorted(faster) == sorted(FASTER), sorted(faster)
    return [f"{100 * (faster[key]['of_native'] - 1):.1f}" for key in FASTER]


def settings_fsdp(rows):
    for way in ("native", "expandable", "ductile", "ductile+cross_stream_reuse:wait"):
        (row,) = [row for row in rows if (row["case"], row["way"]) == ("fsdp2", way)]
        yield [f"{row[name] / 1024:.2f}" for name in ("used_mib", "held_mib")]
        yield [f"{row['of_first']:.2f}", f"{row['of_first_noise']:.2f}"] if way != "native" else []


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


def settings_near_wait(rows):
    """Steps refused, retries and milliseconds of the program with streams of its own, told to wait."""
    row = settings_rows([rows], "near")["streams", "ductile+record_stream:wait"]
    return row["refusals"], row["retries"], f"{row['ms']:.0f}"


CAPPED = (*TRACES[:1], *TRACES[2:4], "fsdp2_llama", "fsdp", "oneshot", "llama_1b_lora_recompute", "offload")


def settings_traces(rows):
    for trace in CAPPED:
        yield f"{where(rows, trace=trace, contender='ductile')[0]['capacity_bytes'] / MIB:,.0f}"
        for name in ("expandable", "ductile"):
            row = one(rows, trace=trace, contender=name)
            yield row["stream_syncs"] if row["completed"] else []
