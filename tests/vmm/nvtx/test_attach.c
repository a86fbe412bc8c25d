/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The idea: NVTX_INJECTION64_PATH names a library, and whether a tool is found, and which of its
 * functions are used, depends on that library alone. The stand-in checks what it is given itself,
 * and aborts at a mistake. Each test is its own process.
 */
#include "tests/support/nvtx_tool.h"
#include "vmm/nvtx/attach.h"

#include <string.h>

static char reason[512];

static const nvtx_tool *attach(bool wants_memory) {
    strcpy(reason, "not written");
    return dvmm_nvtx_attach(wants_memory, reason, sizeof reason);
}

static void expect_no_tool(const char *word) {
    cr_expect_null(attach(true));
    cr_expect_not_null(strstr(reason, word), "\"%s\" does not say \"%s\"", reason, word);
}

Test(nvtx_attach, no_name_is_no_tool_and_no_complaint) {
    cr_assert_eq(unsetenv("NVTX_INJECTION64_PATH"), 0);
    cr_expect_null(attach(true));
    cr_expect_str_empty(reason);
    name_tool("");
    cr_expect_null(attach(true));
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
    cr_expect_not_null(attach(true));
    cr_expect_str_empty(reason);
}

Test(nvtx_attach, a_tool_is_asked_once_and_for_memory_only_when_it_is_wanted) {
    load_tool(FAKE_NVTX_WHOLE);
    const nvtx_tool *ranges = attach(false);
    cr_assert_not_null(ranges);
    cr_expect(tool->is_attached && !ranges->has_memory);
    const nvtx_tool *both = attach(true);
    cr_expect(both->has_memory);
    cr_expect_eq(attach(false), ranges);
    cr_expect_eq(attach(true), both);
    cr_expect(!ranges->has_memory, "a tool that was returned does not change");
}

Test(nvtx_attach, ranges_reach_the_tool) {
    load_tool(FAKE_NVTX_WHOLE);
    const nvtx_tool *t = attach(false);
    const nvtx_event event = {.version = NVTX_INTERFACE_VERSION,
                              .size = sizeof event,
                              .message_type = NVTX_MESSAGE_ASCII,
                              .message.ascii = "a range"};
    dvmm_nvtx_tool_push(t, &event);
    dvmm_nvtx_tool_pop(t);
    assert_u64(tool->count("a range", NULL), 1);
    assert_u64(tool->n_popped, 1);
}

Test(nvtx_attach, a_tool_may_stop_listening_and_begin_again) {
    load_tool(FAKE_NVTX_WHOLE);
    const nvtx_tool *t = attach(false);
    const nvtx_event event = {.version = NVTX_INTERFACE_VERSION,
                              .size = sizeof event,
                              .message_type = NVTX_MESSAGE_ASCII,
                              .message.ascii = "a range"};
    tool->listen(false);
    dvmm_nvtx_tool_push(t, &event);
    dvmm_nvtx_tool_pop(t);
    assert_u64(tool->n_calls, 0);
    tool->listen(true);
    dvmm_nvtx_tool_push(t, &event);
    dvmm_nvtx_tool_pop(t);
    assert_u64(tool->n_calls, 2);
}

Test(nvtx_attach, functions_that_a_tool_lacks_do_nothing) {
    name_tool(FAKE_NVTX_WITHOUT_MEMORY);
    const nvtx_tool *t = attach(true);
    cr_assert_not_null(t);
    cr_expect(!t->has_memory);
    cr_expect_not_null(strstr(reason, "takes no registration of memory"), "%s", reason);
    cr_expect_eq(t->heap_register(t->domain, NULL), NVTX_NO_HEAP);
    t->regions_register(t->domain, NULL);
    t->regions_name(t->domain, NULL);
    t->regions_unregister(t->domain, NULL);
    t->heap_unregister(t->domain, NVTX_NO_HEAP);
}
