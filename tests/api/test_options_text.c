/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options as text: what DUCTILE_CONF and --set take. Every key is settable, what is printed can be
 * read again, and what is wrong is refused whole, with a line that names the key.
 */
#include "tests/support/complain.h"
#include "tests/support/expect.h"
#include "tests/support/fixture_virtual.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ductile_options parsed(const char *text) {
    ductile_options o;
    ductile_options_init(&o);
    char message[256] = "";
    ductile_status status = ductile_options_parse(&o, text, message, sizeof message);
    cr_assert(status == DUCTILE_OK, "%s: %s", text, message);
    return o;
}

static void is_refused_naming(const char *text, const char *key) {
    ductile_options o;
    ductile_options_init(&o);
    o.limit_bytes = 12345;
    ductile_options before = o;
    char message[256] = "";
    ductile_status status = ductile_options_parse(&o, text, message, sizeof message);
    cr_assert(status == DUCTILE_ERR_INVALID_ARGUMENT, "\"%s\": %s", text,
              ductile_status_name(status));
    cr_assert_not_null(strstr(message, key), "\"%s\" does not name %s", message, key);
    cr_assert_null(strchr(message, '\n'), "the message has more than one line");
    cr_assert_eq(memcmp(&before, &o, sizeof o), 0, "\"%s\" changed something", text);
    assert_status(ductile_options_parse(&o, text, NULL, 0), DUCTILE_ERR_INVALID_ARGUMENT);
}

Test(options_text, defaults_are_those_of_the_header) {
    ductile_options o;
    memset(&o, 0xFF, sizeof o);
    ductile_options_init(&o);
    assert_u64(o.struct_size, sizeof o);
    cr_assert_eq(o.driver, DUCTILE_DRIVER_CUDA);
    cr_assert_eq(o.reuse, DUCTILE_REUSE_STREAMS);
    cr_assert_eq(o.captures, DUCTILE_CAPTURES_POOLS);
    cr_assert_eq(o.sizes, 0);
    cr_assert_eq(o.record_stream, DUCTILE_RECORD_POLL);
    cr_assert(!o.compact_off && !o.caching_off && !o.zero && !o.rdma && !o.shareable);
    cr_assert(o.log == NULL && o.virtual_gpu == NULL && o.limit_bytes == 0);
}

Test(options_text, each_key_sets_its_field) {
    ductile_options o =
        parsed("driver:virtual,device:3,limit_bytes:3G,soft_limit_bytes:80%,sizes:64M,reuse:never,"
               "compact:off,address_budget_bytes:8T,captures:announced,record_stream:wait,"
               "caching:off,zero:on,shareable:fd,rdma:on,check:1,"
               "find:overruns,sleep_host_bytes:40G,spill_bytes:25%");
    cr_assert_eq(o.driver, DUCTILE_DRIVER_VIRTUAL);
    cr_assert_eq(o.device, 3);
    assert_u64(o.limit_bytes, 3 * GIB);
    assert_u64(o.soft_limit_bytes, DUCTILE_SHARE(0.8));
    assert_u64(o.sizes, 64 * MIB);
    cr_assert_eq(o.reuse, DUCTILE_REUSE_NEVER);
    cr_assert_eq(o.compact_off, 1);
    assert_u64(o.address_budget_bytes, 8 * 1024 * GIB);
    cr_assert_eq(o.captures, DUCTILE_CAPTURES_ANNOUNCED);
    cr_assert_eq(o.record_stream, DUCTILE_RECORD_WAIT);
    cr_assert_eq(o.caching_off, 1);
    cr_assert_eq(o.zero, 1);
    cr_assert_eq(o.shareable, 1);
    cr_assert_eq(o.rdma, 1);
    cr_assert_eq(o.check, 1);
    cr_assert_eq(o.find, DUCTILE_FIND_OVERRUNS);
    assert_u64(o.sleep_host_bytes, 40 * GIB);
    assert_u64(o.spill_bytes, DUCTILE_SHARE(0.25));
    assert_u64(parsed("sizes:64M").sizes, 64 * MIB);
    assert_u64(parsed("sizes:16M,sizes:auto").sizes, 0);
}

/* ---- Every key of the table, by what its refusal says of it ---------------------------------- */

/* What is set to this value, printed and read again is the same, and perhaps not the default. */
static bool reads_back(const char *key, const char *value) {
    ductile_options defaults;
    char message[256] = "";
    char text[1024];
    ductile_options_init(&defaults);
    ductile_options o = defaults;
    if (ductile_options_set(&o, key, value, message, sizeof message) != DUCTILE_OK) {
        return false;
    }
    (void)ductile_options_format(&o, text, sizeof text);
    ductile_options again = parsed(text);
    cr_assert_eq(memcmp(&o, &again, sizeof o), 0, "%s:%s is printed as %s", key, value, text);
    return memcmp(&o, &defaults, sizeof o) != 0;
}

/* The words of "option 'reuse' takes streams, stream, never, wait, not '?'". */
static int count_that_read_back(const char *key) {
    ductile_options o;
    char message[256] = "";
    ductile_options_init(&o);
    ductile_status status = ductile_options_set(&o, key, "?", message, sizeof message);
    assert_status(status, DUCTILE_ERR_INVALID_ARGUMENT);
    char *words = strstr(message, " takes ");
    cr_assert_not_null(words, "%s", message);
    int n = reads_back(key, "1") + reads_back(key, "8") + reads_back(key, "64M");
    char *rest = NULL;
    for (char *word = strtok_r(words + strlen(" takes "), " ,", &rest); word != NULL;
         word = strtok_r(NULL, " ,", &rest)) {
        n += reads_back(key, word);
    }
    return n;
}

Test(options_text, each_key_is_printed_as_it_is_read) {
    ductile_options o;
    char text[1024];
    char *rest = NULL;
    unsigned n_keys = 0;
    ductile_options_init(&o);
    (void)ductile_options_format(&o, text, sizeof text);
    for (char *pair = strtok_r(text, ",", &rest); pair != NULL; pair = strtok_r(NULL, ",", &rest)) {
        pair[strcspn(pair, ":")] = '\0';
        cr_expect_gt(count_that_read_back(pair), 0, "%s takes no value but its default", pair);
        n_keys++;
    }
    cr_assert_geq(n_keys, 17);
}

Test(options_text, sizes_take_suffixes_and_plain_numbers) {
    assert_u64(parsed("limit_bytes:1").limit_bytes, 1);
    assert_u64(parsed("limit_bytes:2K").limit_bytes, 2048);
    assert_u64(parsed("limit_bytes:2T").limit_bytes, 2048 * GIB);
    assert_u64(parsed("limit_bytes:9223372036854775807").limit_bytes, INT64_MAX);
    assert_u64(parsed("address_budget_bytes:18446744073709551615").address_budget_bytes,
               UINT64_MAX);
}

Test(options_text, limits_take_shares) {
    assert_u64(parsed("limit_bytes:100%").limit_bytes, DUCTILE_SHARE(1));
    assert_u64(parsed("limit_bytes:12.5%").limit_bytes, DUCTILE_SHARE(0.125));
    assert_u64(parsed("soft_limit_bytes:1e-3%").soft_limit_bytes, DUCTILE_SHARE(1e-5));
}

Test(options_text, an_empty_text_changes_nothing) {
    ductile_options o = parsed("");
    ductile_options defaults;
    ductile_options_init(&defaults);
    cr_assert_eq(memcmp(&o, &defaults, sizeof o), 0);
}

Test(options_text, a_later_key_wins) {
    assert_u64(parsed("limit_bytes:1G,limit_bytes:2G").limit_bytes, 2 * GIB);
}

/* What the line names. */
static const struct refusal {
    const char *text, *names;
} refusals[] = {
    {"limit_byte:1G", "limit_byte"},
    {"expandable_segments:True", "expandable_segments"},
    {"limit_bytes:1G,nonsense:1", "nonsense"},
    {"struct_size:4", "struct_size"},
    {"compact:maybe", "compact"},
    {"reuse:sometimes", "reuse"},
    {"driver:opencl", "driver"},
    {"device:-1", "device"},
    {"device:one", "device"},
    {"sizes:small", "sizes"},
    {"sizes:0", "sizes"},
    {"sizes:50%", "sizes"},
    {"check:4", "check"},
    {"zero:on,limit_bytes:1Q", "limit_bytes"},
    {"limit_bytes", "limit_bytes"},
};

Test(options_text, unknown_keys_and_wrong_values_are_named) {
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        is_refused_naming(refusals[i].text, refusals[i].names);
    }
}

Test(options_text, what_may_have_been_meant_is_named) {
    static const struct refusal meant[] = {
        {"limit_byte:1G", "did you mean limit_bytes?"},
        {"limit_bytse:1G", "did you mean limit_bytes?"},
        {"limit:1G", "did you mean limit_bytes?"},
        {"record:wait", "did you mean record_stream?"},
        {"sizes:aut", "did you mean auto?"},
        {"reuse:nver", "did you mean never?"},
        {"caching:of", "takes on or off, not 'of'"},
        {"find:overrun", "did you mean overruns?"},
        {"xfind:overruns", "did you mean find?"},
        {"drivr:virtual", "did you mean driver?"},
    };
    for (size_t i = 0; i < sizeof meant / sizeof meant[0]; i++) {
        is_refused_naming(meant[i].text, meant[i].names);
    }
    ductile_options o;
    char message[256] = "";
    ductile_options_init(&o);
    assert_status(ductile_options_set(&o, "a", "1", message, sizeof message),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_str_eq(message, "unknown option 'a'");
}

Test(options_text, an_equals_sign_is_a_colon) {
    ductile_options colons = parsed("limit_bytes:80%,sizes:2M,zero:on");
    ductile_options mixed = parsed("limit_bytes=80%, sizes = 2M ,zero:on");
    cr_assert_eq(memcmp(&colons, &mixed, sizeof colons), 0);
    is_refused_naming("=2M", "''");
    is_refused_naming("sizes=2M=4M", "sizes");
    is_refused_naming("sizes,zero:on", "'sizes' is not key:value");
}

Test(options_text, malformed_sizes_and_shares_are_named) {
    static const char *const values[] = {"",           "-1",
                                         "1Q",         "1GG",
                                         "G",          "1 G",
                                         "0x10",       "1.5G",
                                         "999999T999", "18446744073709551616",
                                         "16777216T",  "9223372036854775808",
                                         "101%",       "0%",
                                         "-50%",       "nan%",
                                         "50%%",       "50 %",
                                         "%",          "1e9%"};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "limit_bytes:%s", values[i]);
        is_refused_naming(text, "limit_bytes");
    }
}

Test(options_text, set_is_parse_of_one) {
    ductile_options o;
    ductile_options_init(&o);
    assert_ok(ductile_options_set(&o, "limit_bytes", "1G", NULL, 0));
    assert_u64(o.limit_bytes, GIB);
    char message[64] = "";
    assert_status(ductile_options_set(&o, "limit_bites", "2G", message, sizeof message),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(message, "limit_bites"));
    assert_u64(o.limit_bytes, GIB);
}

Test(options_text, a_short_message_buffer_is_terminated) {
    ductile_options o;
    ductile_options_init(&o);
    char message[8];
    memset(message, 'x', sizeof message);
    assert_status(ductile_options_set(&o, "a_very_long_key_that_is_unknown", "1", message, 4),
                  DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_eq(message[3], '\0');
    cr_assert_eq(message[4], 'x');
}

Test(options_text, what_is_printed_can_be_read_again) {
    ductile_options o = parsed("limit_bytes:3G,reuse:wait,compact:off,zero:on,check:3,device:2,"
                               "soft_limit_bytes:70.7%,sizes:20M,driver:virtual");
    char first[2048];
    char second[2048];
    size_t length = ductile_options_format(&o, first, sizeof first);
    cr_assert_eq(length, strlen(first));
    ductile_options again = parsed(first);
    (void)ductile_options_format(&again, second, sizeof second);
    cr_assert_str_eq(first, second);
    assert_u64(again.limit_bytes, 3 * GIB);
    assert_u64(again.soft_limit_bytes, o.soft_limit_bytes);
    assert_u64(again.sizes, 20 * MIB);
    cr_assert_not_null(strstr(first, "soft_limit_bytes:70.7%,sizes:20971520"), "%s", first);
}

Test(options_text, shares_are_printed_as_they_were_written) {
    static const char *const shares[] = {"100%", "80%",    "50%",
                                         "7%",   "0.125%", "33.333333333333336%"};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        char given[64];
        char text[2048];
        (void)snprintf(given, sizeof given, "limit_bytes:%s,", shares[i]);
        ductile_options o = parsed(given);
        (void)ductile_options_format(&o, text, sizeof text);
        cr_assert_not_null(strstr(text, given), "%s", text);
    }
}

Test(options_text, printing_says_how_much_room_it_needs) {
    ductile_options o;
    ductile_options_init(&o);
    char whole[2048];
    char part[10] = "#########";
    size_t length = ductile_options_format(&o, whole, sizeof whole);
    assert_u64(ductile_options_format(&o, NULL, 0), length);
    assert_u64(ductile_options_format(&o, part, 6), length);
    cr_assert_eq(strncmp(part, whole, 5), 0);
    cr_assert_eq(part[5], '\0');
    cr_assert_eq(part[6], '#');
}

/* ---- Into the allocator -------------------------------------------------------------------- */

static ductile_status create_virtual(ductile_options *o, ductile_allocator **a) {
    o->driver = DUCTILE_DRIVER_VIRTUAL;
    return ductile_create(a, o);
}

Test(options_text, the_environment_is_applied_on_top) {
    cr_assert_eq(setenv("DUCTILE_CONF", "driver:virtual,limit_bytes:64M", 1), 0);
    ductile_options o = parsed("limit_bytes:1G,zero:on");
    ductile_options effective;
    ductile_options_init(&effective);
    ductile_allocator *a = NULL;
    assert_ok(ductile_create(&a, &o));
    ductile_get_options(a, &effective);
    assert_u64(effective.limit_bytes, 64 * MIB);
    cr_assert_eq(effective.zero, 1);
    cr_assert_eq(effective.driver, DUCTILE_DRIVER_VIRTUAL);
    assert_ok(ductile_destroy(a));
}

Test(options_text, a_wrong_environment_is_an_error_that_names_it_and_its_key) {
    cr_assert_eq(setenv("DUCTILE_CONF", "driver=virtual,sizes:aut", 1), 0);
    ductile_options o = parsed("");
    ductile_allocator *a = NULL;
    assert_status(create_virtual(&o, &a), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_null(a);
    cr_assert_str_eq(ductile_create_error(),
                     "DUCTILE_CONF: option 'sizes' takes auto, or the largest handle, such as 16M, "
                     "not 'aut': did you mean auto?");
}

Test(options_text, what_only_a_device_refuses_names_the_environment_too) {
    cr_assert_eq(setenv("DUCTILE_CONF", "sizes=3M", 1), 0);
    ductile_options o = parsed("");
    ductile_allocator *a = NULL;
    assert_status(create_virtual(&o, &a), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_not_null(strstr(ductile_create_error(), "sizes must be auto"));
    cr_assert_not_null(strstr(ductile_create_error(), " (DUCTILE_CONF: sizes=3M)"));
}

Test(options_text, the_reason_is_of_the_threads_last_create) {
    cr_assert_eq(setenv("DUCTILE_CONF", "nonsense:1", 1), 0);
    ductile_options o = parsed("");
    ductile_allocator *a = NULL;
    cr_assert_str_eq(ductile_create_error(), "");
    assert_status(create_virtual(&o, &a), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_str_eq(ductile_create_error(), "DUCTILE_CONF: unknown option 'nonsense'");
    assert_status(ductile_create(NULL, NULL), DUCTILE_ERR_INVALID_ARGUMENT);
    cr_assert_str_eq(ductile_create_error(), "there is no place for the allocator: out is NULL");
    cr_assert_eq(setenv("DUCTILE_CONF", "", 1), 0);
    assert_ok(create_virtual(&o, &a));
    cr_assert_str_eq(ductile_create_error(), "");
    assert_ok(ductile_destroy(a));
}

Test(options_text, what_no_device_can_do_is_refused) {
    (void)unsetenv("DUCTILE_CONF");
    static const char *const texts[] = {"sizes:3M", "sizes:1M", "sizes:65G"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ductile_allocator *a = NULL;
        ductile_options o = parsed(texts[i]);
        ductile_status status = create_virtual(&o, &a);
        cr_assert(status == DUCTILE_ERR_INVALID_ARGUMENT, "%s: %s", texts[i],
                  ductile_status_name(status));
    }
}

/* A struct from an older header is shorter; one from a newer header may ask for what we lack. */
Test(options_text, the_size_of_the_struct_decides_what_is_read) {
    (void)unsetenv("DUCTILE_CONF");
    struct {
        ductile_options o;
        uint64_t later_field;
    } newer = {.o = parsed(""), .later_field = 0};
    ductile_allocator *a = NULL;
    newer.o.struct_size = sizeof newer;
    assert_ok(create_virtual(&newer.o, &a));
    assert_ok(ductile_destroy(a));
    newer.later_field = 1;
    assert_status(create_virtual(&newer.o, &a), DUCTILE_ERR_UNSUPPORTED);
    ductile_options older = parsed("driver:virtual,zero:on");
    older.struct_size = offsetof(ductile_options, zero);
    assert_ok(ductile_create(&a, &older));
    ductile_options effective;
    ductile_options_init(&effective);
    ductile_get_options(a, &effective);
    cr_assert_eq(effective.zero, 0);
    assert_ok(ductile_destroy(a));
    older.struct_size = 0;
    assert_status(ductile_create(&a, &older), DUCTILE_ERR_INVALID_ARGUMENT);
}
