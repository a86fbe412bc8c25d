/* SPDX-License-Identifier: Apache-2.0 */
/* The other library may be of another version. tests/lint/check_consume.cmake does without it. */
#include "tests/support/expect.h"
#include "vmm/driver/open_virtual.h"

#include <stdio.h>

static ductile_status must_not_open(ductile_virtual_gpu *gpu, dvmm_opened *out) {
    (void)gpu, (void)out;
    cr_assert_fail("it was opened");
    return DUCTILE_OK;
}

static ductile_status opens_nothing(ductile_virtual_gpu *gpu, dvmm_opened *out) {
    (void)gpu, (void)out;
    return DUCTILE_ERR_OUT_OF_HOST_MEMORY;
}

static void assert_refused(const dvmm_backend *backend, const char *sentence) {
    dvmm_virtual_head gpu = {.backend = backend};
    dvmm_driver *driver = (dvmm_driver *)&gpu; /* not NULL */
    char reason[512] = "";
    assert_status(dvmm_open_virtual((ductile_virtual_gpu *)&gpu, &driver, reason, sizeof reason),
                  DUCTILE_ERR_NO_LIBRARY);
    cr_assert_null(driver);
    cr_assert_str_eq(reason, sentence);
    assert_status(dvmm_open_virtual((ductile_virtual_gpu *)&gpu, &driver, NULL, 0),
                  DUCTILE_ERR_NO_LIBRARY);
}

Test(open_virtual, a_gpu_of_another_versions_library_is_refused_and_both_versions_named) {
    dvmm_backend other = {.version = "0.0.9", .shape = DVMM_SHAPE, .open = must_not_open};
    char sentence[200];
    (void)snprintf(sentence, sizeof sentence,
                   "libductile is version %s, libductile_virtual is 0.0.9: install both of one "
                   "version",
                   ductile_version());
    assert_refused(&other, sentence);
}

Test(open_virtual, a_gpu_of_other_headers_is_refused_though_the_version_is_the_same) {
    dvmm_backend other = {.version = ductile_version(), .shape = DVMM_SHAPE + 1};
    other.open = must_not_open;
    char sentence[200];
    (void)snprintf(sentence, sizeof sentence,
                   "libductile and libductile_virtual were built from different sources of version "
                   "%s: build both from the same",
                   ductile_version());
    assert_refused(&other, sentence);
}

Test(open_virtual, a_backend_that_cannot_open_answers_its_own_status) {
    dvmm_backend full = {.version = ductile_version(), .shape = DVMM_SHAPE, .open = opens_nothing};
    dvmm_virtual_head gpu = {.backend = &full};
    dvmm_driver *driver = (dvmm_driver *)&gpu;
    char reason[8] = "as was";
    assert_status(dvmm_open_virtual((ductile_virtual_gpu *)&gpu, &driver, reason, sizeof reason),
                  DUCTILE_ERR_OUT_OF_HOST_MEMORY);
    cr_assert_null(driver);
    cr_assert_str_eq(reason, "as was");
}

Test(open_virtual, a_program_that_brings_the_library_needs_no_other) {
    cr_assert_not_null(ductile_virtual_backend());
    cr_assert_str_eq(ductile_virtual_backend()->version, ductile_version());
}
