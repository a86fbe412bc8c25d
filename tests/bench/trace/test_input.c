/* SPDX-License-Identifier: Apache-2.0 */
/* A file comes whole through the window, packed or not, whatever is asked for at a time. */
#include "bench/trace/input.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { SIZE = 3000000 };

static char path[] = "ductile-input-XXXXXX"; /* in the folder that the test runs in */

static unsigned char byte_at(size_t i) {
    return (unsigned char)(i * 7 + i / 251);
}

static void make_file(void) {
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    (void)close(file);
}

static void remove_file(void) {
    (void)unlink(path);
}

TestSuite(input, .init = make_file, .fini = remove_file);

/* In so many gzip members; 0: not packed. */
static void write_file(size_t size, size_t n_members) {
    unsigned char *bytes = malloc(size);
    cr_assert_not_null(bytes);
    for (size_t i = 0; i < size; i++) {
        bytes[i] = byte_at(i);
    }
    for (size_t k = 0; k < (n_members > 0 ? n_members : 1); k++) {
        size_t from = n_members > 0 ? size * k / n_members : 0;
        size_t to = n_members > 0 ? size * (k + 1) / n_members : size;
        gzFile file = gzopen(path, n_members == 0 ? "wbT" : k == 0 ? "wb" : "ab");
        cr_assert_not_null(file);
        cr_assert_eq(gzwrite(file, bytes + from, (unsigned)(to - from)), (int)(to - from));
        cr_assert_eq(gzclose(file), Z_OK);
    }
    free(bytes);
}

static void read_in_pieces(size_t piece) {
    char reason[256];
    size_t at = 0;
    input in;
    cr_assert(input_open(&in, path, reason, sizeof reason), "%s", reason);
    while (input_has(&in, piece) || input_left(&in) > 0) {
        size_t n = input_left(&in) < piece ? input_left(&in) : piece;
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(in.at[i], byte_at(at + i), "byte %zu", at + i);
        }
        in.at += n;
        at += n;
    }
    cr_expect_null(in.reason);
    cr_expect_eq(at, SIZE);
    cr_expect_eq(in.n_bytes, SIZE);
    input_close(&in);
}

Test(input, every_byte_comes_in_pieces_of_any_size) {
    for (size_t n_members = 0; n_members < 4; n_members++) {
        write_file(SIZE, n_members);
        read_in_pieces(1);
        read_in_pieces(4099);
        read_in_pieces(SIZE / 2 + 1);
        read_in_pieces(2 * SIZE);
    }
}

/* So many that no host has memory for them. */
Test(input, more_than_the_file_has_is_no_lack_of_memory) {
    for (size_t n_members = 0; n_members < 2; n_members++) {
        char reason[256];
        input in;
        write_file(SIZE, n_members);
        cr_assert(input_open(&in, path, reason, sizeof reason), "%s", reason);
        cr_expect(!input_has(&in, (size_t)1 << 60));
        cr_expect_null(in.reason, "%s", in.reason);
        cr_expect_eq(input_left(&in), SIZE);
        cr_expect_eq(in.at[SIZE - 1], byte_at(SIZE - 1));
        input_close(&in);
    }
}

Test(input, a_packed_file_that_is_cut_off_says_so_at_its_end) {
    char reason[256];
    input in;
    write_file(SIZE, 1);
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    (void)fclose(file);
    cr_assert_eq(truncate(path, size - 9), 0);
    cr_assert(input_open(&in, path, reason, sizeof reason));
    cr_expect(input_has(&in, 1000));
    cr_expect_not(input_has(&in, 2 * SIZE));
    cr_assert_not_null(in.reason);
    cr_expect_not_null(strstr(in.reason, "cut off"));
    input_close(&in);
}
