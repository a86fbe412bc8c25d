/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: NVTX_INJECTION64_PATH names a library, and whether a tool is found, and which of its
 * functions are used, depends on that library alone. The stand-in checks what it is given itself,
 * and aborts at a mistake. Each test is its own process.
 */
#include "pool/services/profiling/nvtx.h"
#include "tests/support/nvtx_tool.h"

#include <string.h>

static char reason[512];

static const dvmm_sections *attach(void) {
    strcpy(reason, "not written");
    return dpool_nvtx_attach(reason, sizeof reason);
}

static void expect_no_tool(const char *word) {
    cr_expect_null(attach());
    cr_expect_not_null(strstr(reason, word), "\"%s\" does not say \"%s\"", reason, word);
}

Test(nvtx_attach, no_name_is_no_tool_and_no_complaint) {
    cr_assert_eq(unsetenv("NVTX_INJECTION64_PATH"), 0);
    cr_expect_null(attach());
    cr_expect_str_empty(reason);
    name_tool("");
    cr_expect_null(attach());
    cr_expect_str_empty(reason);
}

Test(nvtx_attach, a_library_that_is_not_there_is_named) {
    name_tool("no-such-tool.so");
    expect_no_tool("no-such-tool.so");
}

Test(nvtx_attach, a_library_that_is_no_tool_is_named) {
    name_tool("libm.so.6");
    expect_no_tool("libm.so.6 is no NVTX tool");
}

Test(nvtx_attach, a_tool_that_refuses_is_named) {
    name_tool(FAKE_NVTX_UNWILLING);
    expect_no_tool("does not want to attach");
}

Test(nvtx_attach, a_later_attempt_finds_a_tool_named_meanwhile) {
    name_tool("no-such-tool.so");
    expect_no_tool("cannot be loaded");
    name_tool(FAKE_NVTX_WHOLE);
    cr_expect_not_null(attach());
    cr_expect_str_empty(reason);
}

Test(nvtx_attach, a_tool_is_asked_once) {
    load_tool(FAKE_NVTX_WHOLE);
    const dvmm_sections *first = attach();
    cr_assert_not_null(first);
    cr_expect(tool->is_attached);
    cr_expect_eq(attach(), first);
}

Test(nvtx_attach, ranges_reach_the_tool) {
    uint64_t bytes = 0;
    load_tool(FAKE_NVTX_WHOLE);
    const dvmm_sections *n = attach();
    n->begin("a range", 77);
    n->end();
    assert_u64(tool->count("a range", &bytes), 1);
    assert_u64(bytes, 77);
    assert_u64(tool->n_popped, 1);
}

Test(nvtx_attach, a_tool_may_stop_listening_and_begin_again) {
    load_tool(FAKE_NVTX_WHOLE);
    const dvmm_sections *n = attach();
    tool->listen(false);
    n->begin("a range", 0);
    n->end();
    assert_u64(tool->n_calls, 0);
    tool->listen(true);
    n->begin("a range", 0);
    n->end();
    assert_u64(tool->n_calls, 2);
}
