#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: test_planted.py SCRATCH

Whether the lints see what they are there for: faults are planted into a copy of the sources, and each lint has to
name all that are for it.
"""

import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# What the README says of costs, with its first number changed.
COSTS = re.search(r"<!-- from [^>]* readme_cost -->.*?\n\n", (ROOT / "README.md").read_text(), re.S).group()
FALSE_COSTS = re.sub(r"in \d+ programs", "in 999 programs", COSTS, count=1)

# The lint, the file that gets the text, the text, and what the lint has to print.
PLANTS = {
    "an include that points up": (
        "check_rooms.py", "segments/segment.h", '#include "pool/pressure/ladder.h"\n',
        "segments/segment.h: segments may not include pool/pressure/ladder.h"),
    "an include that points up inside a layer": (
        "check_rooms.py", "pool/blocks/block.h", '#include "pool/pressure/ladder.h"\n',
        "pool/blocks/block.h: pool/blocks may not include pool/pressure/ladder.h"),
    "an include that points up inside the virtual GPU": (
        "check_rooms.py", "vmm/virtual/race/blocks.h", '#include "vmm/virtual/work/work.h"\n',
        "vmm/virtual/race/blocks.h: vmm/virtual/race may not include vmm/virtual/work/work.h"),
    "the virtual GPU in an allocator": (
        "check_rooms.py", "pool/allocator.c", "static void planted(void) { ductile_virtual_create(0, 0); }\n",
        "pool/allocator.c: pool may not use ductile_virtual_create"),
    "a call that points up": (
        "check_rooms.py", "vmm/range.c", "static void planted(void) { dseg_set_fini(0); }\n",
        "vmm/range.c: vmm may not use dseg_set_fini"),
    "a path that hides where it leads": (
        "check_rooms.py", "segments/segment.h", '#include "../pool/pressure/ladder.h"\n',
        "segments/segment.h: ../pool/pressure/ladder.h is not the path of a header from the root"),
    "a layer in an extra": (
        "check_rooms.py", "extras/planted/planted.c", '#include "pool/blocks/block.h"\n',
        "extras/planted/planted.c: extras/planted/pool/blocks/block.h is not the path of a header"),
    "a layer in an extra, by a path": (
        "check_rooms.py", "extras/planted/planted.h", '#include "../../pool/blocks/block.h"\n',
        "extras/planted/planted.h: extras/planted/../../pool/blocks/block.h is not the path of a header"),
    "a call into a layer in an extra": (
        "check_rooms.py", "extras/planted/planted.c", "static void planted(void) { dseg_set_fini(0); }\n",
        "extras/planted/planted.c: extras/planted may not use dseg_set_fini"),
    "a layer in the Python package": (
        "check_rooms.py", "python/ductile_gpu/planted.cpp", '#include "vmm/range.h"\n',
        "python/ductile_gpu/planted.cpp: may not include vmm/range.h"),
    "an import that points up": (
        "check_folders.py", "python/ductile_gpu/_binding/_objects.py", "import ductile_gpu._process._share\n",
        "_binding may not import _process/_share"),
    "an import of the face": (
        "check_folders.py", "python/ductile_gpu/_process/_metrics.py", "def planted():\n    import ductile_gpu\n",
        "_process/_metrics may not import the face"),
    "an import by a made name": (
        "check_folders.py", "python/ductile_gpu/_process/_share.py",
        "import_module(f'ductile_gpu.{planted}')\n", "imports by a name that is made"),
    "a module in no folder": (
        "check_folders.py", "python/ductile_gpu/_planted.py", "\n",
        "python/ductile_gpu/_planted.py: belongs into a folder"),
    "a private module in an extra": (
        "check_extras.py", "extras/planted/python/planted.py", "from ductile_gpu._binding import _core\n",
        "planted.py:1: ductile_gpu._binding._core is private"),
    "a private name behind a module in an extra's test": (
        "check_extras.py", "extras/planted/tests/test_planted.py",
        "import ductile_gpu.torch as here\nhere._install.leave()\n",
        "test_planted.py:2: ductile_gpu.torch._install.leave is private"),
    "a private module by its name in an extra": (
        "check_extras.py", "extras/planted/tests/run.py", "import_module('ductile_gpu._process')\n",
        "run.py:1: ductile_gpu._process is private"),
    "a relative import in an extra": (
        "check_extras.py", "extras/planted/python/planted/inner.py", "from ..torch import _tags\n",
        "inner.py:1: a relative import"),
    "a circle of modules": (
        "check_folders.py", "python/ductile_gpu/_process/_share.py", "def planted():\n"
        "    from ductile_gpu._process import _live\n",
        "a circle of modules: _process/_live"),
    "a circle of includes": (
        "check_rooms.py", "pool/blocks/block.h", '#include "pool/blocks/free_index.h"\n',
        "a circle of includes: pool/blocks/"),
    "a circle of calls": (
        "check_rooms.py", "vmm/range.c", "static void planted(void) { dvmm_planted_handle(); }\n"
        "void dvmm_planted_range(void) { }\n",
        "a circle of calls: vmm/handle, vmm/range"),
    "a declaration in another file's header": (
        "check_rooms.py", "vmm/range.h", "void dvmm_planted_handle(void);\n",
        "vmm/range.h: declares dvmm_planted_handle, which vmm/handle.c defines"),
    "a file that no page names": (
        "check_rooms.py", "pool/blocks/planted.c", "\n",
        'pool/blocks/planted.c: docs/dev/architecture.md, "Where to look", does not name planted'),
    "a driver call that the library never makes": (
        "check_calls.py", "vmm/driver/driver.h", "#define DVMM_CALLS(X) X(planted, (void *ctx))\n",
        "vmm/driver/driver.h: no source of pool, segments or vmm calls planted"),
    "a driver call that only its wrapper makes": (
        "check_calls.py", "vmm/driver/calls.c", "int dvmm_planted(void) { return d->ops->planted(0); }\n",
        "vmm/driver/driver.h: no source of pool, segments or vmm calls planted"),
    "a bench call that no program makes": (
        "check_calls.py", "vmm/driver/bench_calls.h", "#define DVMM_BENCH_CALLS(X) X(planted_too, (void *ctx))\n",
        "vmm/driver/bench_calls.h: no program of the bench or the tests calls planted_too"),
    "a call of the library in the bench's table": (
        "check_calls.py", "vmm/driver/bench_calls.h", "#define DVMM_BENCH_CALLS(X) X(unmap, (void *ctx))\n",
        "vmm/driver/bench_calls.h: unmap is a call of the library"),
    "a function of the driver that is needed without a call": (
        "check_calls.py", "vmm/cuda/abi.h", '#define CU_REQUIRED_FUNCTIONS(X) X(cuPlanted, "cuPlanted", 2000, (void))\n',
        "vmm/cuda/abi.h: no source of vmm/cuda calls cuPlanted"),
    "a proof that was not thought about": (
        "check_proofs.py", "pool/growth/compact.c", "static void planted(void) {\n    dpool_quiesce_free(0, 0);\n}\n",
        "pool/growth/compact.c: planted calls dpool_quiesce_free"),
    "a lock that is not asserted": (
        "check_locked.py", "vmm/range.c", "static void planted_locked(void) {\n    dvmm_planted_handle();\n}\n",
        "vmm/range.c: planted_locked does not assert its lock"),
    "a private word in a name": (
        "check_words.py", "vmm/range.c", "static int n_chores;\n", '"chores": say maintenance'),
    "a private word in a comment": (
        "check_words.py", "pool/blocks/block.h", "/* Held with the slow lock. */\n", '"slow lock": say grow lock'),
    "a second word for sleep": (
        "check_words.py", "pool/pools/sleep.c", "static void has_paused(void);\n", '"paused": say sleep, put to sleep, asleep'),
    "a vague subject in a public header": (
        "check_words.py", "pool/include/ductile.h", "/** Whoever calls it twice: nobody knows. */\n",
        '"nobody": say which caller, thread or process'),
    "a vague subject": (
        "check_words.py", "vmm/range.c", "/* Whoever holds the lock frees it. */\n", '"Whoever": say which caller'),
    "a private word in a test": (
        "check_words.py", "tests/vmm/test_range.c", "/* The tally of calls. */\n", '"tally": say call counts'),
    "a private word of the tests": (
        "check_words.py", "tests/gpu/sleep.c", "/* Painted by an actor. */\n", '"actor": say thread'),
    "a private word of the tests, in a name": (
        "check_words.py", "tests/gpu/sleep.c", "static int the_canvas;\n", '"canvas": say pattern, block'),
    "a vague subject in the Python package": (
        "check_words.py", "python/ductile_gpu/numba.py", "# Nobody asks.\n", '"Nobody": say which caller'),
    "a private word in a decision": (
        "check_words.py", "docs/dev/decisions/README.md", "The misfits.\n", '"misfits": say oversized'),
    "an option without a key": (
        "check_options.py", "pool/include/ductile.h",
        "typedef struct ductile_options {\n    uint64_t planted_bytes; /* 0: none */\n} ductile_options;\n",
        "pool/include/ductile.h: planted_bytes has no row in keys[]"),
    "a key that the test of keys passes over": (
        "check_options.py", "pool/base/options.c", 'static const key planted[] = {{"planted", &SIZE, FIELD(zero), NULL}};\n',
        "each_key_sets_its_field does not set planted and look at zero"),
    "a field that the test of keys does not look at": (
        "check_options.py", "pool/base/options.c", 'static const key gone[] = {{"zero", &SIZE, FIELD(planted), NULL}};\n',
        "each_key_sets_its_field does not set zero and look at planted"),
    "an option that no page explains": (
        "check_options.py", "pool/base/options.c", 'static const key third[] = {{"third", &SIZE, FIELD(zero), NULL}};\n',
        "docs/tuning.md: does not explain the option third"),
    "a block state that is not published": (
        "check_schema.py", "pool/services/snapshot/snapshot.c", 'case DUCTILE_BLOCK_PLANTED: return "planted";\n',
        "pool/services/snapshot/snapshot.schema.json: lacks the state planted"),
    "a private word in a page": (
        "check_words.py", "docs/contract.md", "The luggage of a plan.\n", '"luggage": say an argument'),
    "a promise without a test": (
        "check_promises.py", "docs/dev/promises.md",
        "| all is well | nothing | `tests/api/test_ductile.c` `all_is_well` |\n",
        "'all is well' names all_is_well, which tests/api/test_ductile.c does not contain"),
    "a number from no file": (
        "check_numbers.py", "docs/benchmarking.md", "\nDuctile uses 0.987 of it.\n",
        "0.987: from no file of bench/results"),
    "a number that the file does not make": (
        "check_numbers.py", "README.md", "\n" + FALSE_COSTS, "says 999 where readme_cost makes"),
    "a number that only the package index has": (
        "check_numbers.py", "python/README.md", "\n17 times\n", "README.md has no such line, and it has numbers"),
    "a number that is neither given nor measured": (
        "check_numbers.py", "docs/benchmarking.md", "\n<!-- given 2: a constant -->\nOf 2 and 3.\n",
        "3: neither given nor from a file"),
    "a commit that was not measured": (
        "check_numbers.py", "docs/benchmarking.md",
        "\n<!-- from bench/results/replay-virtual.jsonl@0123456: readme_held -->\n29\n",
        "bench/results/replay-virtual.jsonl@0123456: the file has no rows of that commit"),
    "a commit that the page does not name": (
        "check_numbers.py", "docs/benchmarking.md",
        "\n# A section\n\n" + re.sub(r"measured at \w+", "", FALSE_COSTS), 'the section does not say "measured at'),
    "a picture that its rows do not make": (
        "check_numbers.py", "docs/images/held.svg", "<text>−61 %</text>\n", "not what bench/plot.py makes of"),
    "a long line in a page": (
        "check_pages.py", "docs/contract.md", "word " * 25 + "\n", "125 characters; 120 are the most"),
    "a README that grows": (
        "check_pages.py", "README.md", "\n" * 111, "lines; 110 are the most"),
}

# The other half of a circle, and a function to be declared in the wrong place.
ALWAYS = {"vmm/handle.c": "void dvmm_planted_handle(void) { dvmm_planted_range(); }\n"}


def copy_tree(scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    for top in ("vmm", "segments", "pool", "extras", "bench", "docs", "python/ductile_gpu"):
        for path in (ROOT / top).rglob("*.*"):
            if path.suffix in (".c", ".h", ".jsonl", ".json", ".md", ".py", ".svg"):
                copy = scratch / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def append(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as out:
        out.write(text)


def group_of(name):
    """Plants that are looked for together. Circles are alone: others would make them larger."""
    return PLANTS[name][0], name if name.startswith("a circle") else ""


def run_planted(scratch, group):
    """The lint on a tree with all of the group."""
    plants = [PLANTS[name][1:3] for name in PLANTS if group_of(name) == group]
    before = {file: (scratch / file).read_text() for file, _ in plants if (scratch / file).exists()}
    for file, text in plants:
        append(scratch / file, text)
    done = subprocess.run([sys.executable, HERE / group[0], scratch], stdout=subprocess.PIPE, text=True)
    for file, _ in plants:
        if file in before:
            (scratch / file).write_text(before[file])
        else:
            (scratch / file).unlink(missing_ok=True)
    return done


def main():
    scratch = pathlib.Path(sys.argv[1])
    copy_tree(scratch)
    for file in ("README.md", "tests/api/test_options_text.c"):
        (scratch / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, scratch / file)
    for file, text in ALWAYS.items():
        append(scratch / file, text)
    results = {group: run_planted(scratch, group) for group in {group_of(name) for name in PLANTS}}
    missed = 0
    for name, (_, _, _, wanted) in PLANTS.items():
        done = results[group_of(name)]
        seen = done.returncode == 1 and wanted in done.stdout
        missed += not seen
        print(f"{'seen' if seen else 'MISSED'}: {name}")
    shutil.rmtree(scratch)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
