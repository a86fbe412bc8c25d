/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random damage to good files. A reader may take or refuse what comes out; it must not crash, read
 * behind the end, or hand on a trace that would crash the replay: an index out of range, a slot
 * freed that is not live, a gate opened that was never closed.
 */
#include "tests/bench/reading.h"
#include "tests/bench/sound_trace.h"
#include "tests/support/rng.h"

enum { N_ROUNDS = 20000 };

static const char good_text[] = "# comment\n"
                                "a 0 205852672 0\na 1 4194304 0\na 2 512 1\ns\nf 0\nc 0\n"
                                "a 3 700 2\nf 1\nf 2\nf 3\nc 3\nc 1\ns\na 4 1 0\n";

static const char good_text_2[] = "# version 2\n"
                                  "a 0 205852672 0\nu 0 3\na 1 4194304 0\na 2 512 1\ns\nf 0\n"
                                  "u 1 1\nu 1 2\nf 1\na 3 700 2\nu 3 0\nu 3 0\nc 1\nf 3\nc 0\n"
                                  "u 2 3\nf 2\n";

/* A snapshot with an entry of each kind, as tests/campaign makes it. */
static unsigned char good_pickle[4096];

static size_t read_good_pickle(void) {
    FILE *file = fopen(GOOD_PICKLE, "rb");
    cr_assert_not_null(file);
    size_t size = fread(good_pickle, 1, sizeof good_pickle, file);
    (void)fclose(file);
    return size;
}

/* ---- Damage -------------------------------------------------------------------------------- */

/* Changes, swaps, drops or repeats a few bytes. Returns the new size; room for twice the size. */
static size_t damage(unsigned char *bytes, size_t size, rng *r) {
    for (uint64_t n = rng_between(r, 1, 4); n > 0 && size > 1; n--) {
        size_t at = (size_t)rng_below(r, size);
        size_t length = (size_t)rng_between(r, 1, 12);
        length = length < size - at ? length : size - at;
        switch (rng_below(r, 5)) {
        case 0:
            bytes[at] = (unsigned char)rng_next(r);
            break;
        case 1:
            bytes[at] ^= (unsigned char)(1u << rng_below(r, 8));
            break;
        case 2:
            memmove(bytes + at, bytes + at + length, size - at - length);
            size -= length;
            break;
        case 3:
            memmove(bytes + at + length, bytes + at, size - at);
            size += length;
            break;
        default:
            bytes[at] = bytes[rng_below(r, size)];
            break;
        }
    }
    return size;
}

static void read_damaged(const void *good, size_t size, uint64_t seed, uint64_t *n_taken) {
    unsigned char bytes[2 * sizeof good_pickle];
    rng r = rng_seeded(seed);
    reading now;
    memcpy(bytes, good, size);
    size = damage(bytes, size, &r);
    if (read_bytes_as_trace(bytes, size, TRACE_FULLEST_GPU, &now)) {
        const char *reason = unsound_trace(&now.t);
        cr_assert_null(reason, "seed %llu: %s", (unsigned long long)seed, reason);
        ++*n_taken;
        drop_reading(&now);
    } else {
        cr_assert_neq(now.error.reason[0], '\0', "seed %llu", (unsigned long long)seed);
    }
}

static void assert_taken(const void *good, size_t size) {
    reading now;
    cr_assert(read_bytes_as_trace(good, size, TRACE_FULLEST_GPU, &now), "%s", now.error.reason);
    cr_assert_null(unsound_trace(&now.t));
    drop_reading(&now);
}

/* Damage that is always refused, or never, would test little. */
static void assert_both_happened(uint64_t n_taken) {
    cr_assert_gt(n_taken, N_ROUNDS / 200);
    cr_assert_lt(n_taken, N_ROUNDS - N_ROUNDS / 200);
}

static void damage_good(const void *good, size_t size) {
    uint64_t n_taken = 0;
    assert_taken(good, size);
    for (uint64_t seed = 1; seed <= N_ROUNDS; seed++) {
        read_damaged(good, size, seed, &n_taken);
    }
    assert_both_happened(n_taken);
}

Test(hostile_input, damaged_text_is_refused_or_makes_sense) {
    damage_good(good_text, strlen(good_text));
}

Test(hostile_input, damaged_text_of_version_2_is_refused_or_makes_sense) {
    damage_good(good_text_2, strlen(good_text_2));
}

Test(hostile_input, damaged_snapshots_are_refused_or_make_sense) {
    damage_good(good_pickle, read_good_pickle());
}

Test(hostile_input, noise_is_refused_or_makes_sense) {
    uint64_t n_taken = 0;
    unsigned char noise[64];
    for (uint64_t seed = 1; seed <= N_ROUNDS; seed++) {
        rng r = rng_seeded(seed);
        for (size_t i = 0; i < sizeof noise; i++) {
            noise[i] = (unsigned char)rng_next(&r);
        }
        noise[0] = seed % 2 == 0 ? 0x80 : noise[0];
        noise[1] = seed % 2 == 0 ? 4 : noise[1];
        read_damaged(noise, sizeof noise, seed, &n_taken);
    }
}
