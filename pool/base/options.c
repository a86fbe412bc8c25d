/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/options.h"

#include "pool/base/allocator.h"
#include "pool/base/near_word.h"

#include "vmm/base/align.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "DUCTILE_CONF"

/* ---- The table ----------------------------------------------------------------------------- */

typedef struct choice {
    const char *name;
    int value;
} choice;

typedef struct kind kind;

typedef struct key {
    const char *name;
    const kind *kind;
    size_t offset;
    const choice *choices; /* CHOICE, HANDLES: ends with a NULL name */
} key;

/* How the values of a key are read and written. */
struct kind {
    bool (*parse)(const key *k, const char *text, void *field);
    void (*format)(const key *k, const void *field, char *text, size_t size);
    const char *wanted; /* NULL: one of the choices */
};

static const kind SIZE, LIMIT, HANDLES, NUMBER, LEVEL, SWITCH, SWITCH_OFF, CHOICE;

static const choice drivers[] = {
    {"cuda", DUCTILE_DRIVER_CUDA}, {"virtual", DUCTILE_DRIVER_VIRTUAL}, {NULL, 0}};
static const choice reuses[] = {{"streams", DUCTILE_REUSE_STREAMS},
                                {"stream", DUCTILE_REUSE_STREAM},
                                {"never", DUCTILE_REUSE_NEVER},
                                {"wait", DUCTILE_REUSE_WAIT},
                                {NULL, 0}};
static const choice sizes[] = {{"auto", 0}, {NULL, 0}};
static const choice records[] = {
    {"poll", DUCTILE_RECORD_POLL}, {"wait", DUCTILE_RECORD_WAIT}, {NULL, 0}};
static const choice capture_notices[] = {{"pools", DUCTILE_CAPTURES_POOLS},
                                         {"unannounced", DUCTILE_CAPTURES_UNANNOUNCED},
                                         {"announced", DUCTILE_CAPTURES_ANNOUNCED},
                                         {NULL, 0}};
static const choice finds[] = {
    {"none", DUCTILE_FIND_NONE}, {"overruns", DUCTILE_FIND_OVERRUNS}, {NULL, 0}};
static const choice shares[] = {{"none", 0}, {"fd", 1}, {"fabric", 8}, {NULL, 0}};

#define FIELD(name) offsetof(ductile_options, name)

static const key keys[] = {
    {"driver", &CHOICE, FIELD(driver), drivers},
    {"device", &NUMBER, FIELD(device), NULL},
    {"limit_bytes", &LIMIT, FIELD(limit_bytes), NULL},
    {"soft_limit_bytes", &LIMIT, FIELD(soft_limit_bytes), NULL},
    {"sizes", &HANDLES, FIELD(sizes), sizes},
    {"reuse", &CHOICE, FIELD(reuse), reuses},
    {"compact", &SWITCH_OFF, FIELD(compact_off), NULL},
    {"address_budget_bytes", &SIZE, FIELD(address_budget_bytes), NULL},
    {"captures", &CHOICE, FIELD(captures), capture_notices},
    {"record_stream", &CHOICE, FIELD(record_stream), records},
    {"caching", &SWITCH_OFF, FIELD(caching_off), NULL},
    {"zero", &SWITCH, FIELD(zero), NULL},
    {"shareable", &CHOICE, FIELD(shareable), shares},
    {"rdma", &SWITCH, FIELD(rdma), NULL},
    {"check", &LEVEL, FIELD(check), NULL},
    {"find", &CHOICE, FIELD(find), finds},
    {"sleep_host_bytes", &SIZE, FIELD(sleep_host_bytes), NULL},
    {"spill_bytes", &LIMIT, FIELD(spill_bytes), NULL},
};

enum { N_KEYS = sizeof keys / sizeof keys[0], MAX_TOKEN = 128, MAX_CHECK = 3 };

_Static_assert(sizeof(ductile_reuse) == sizeof(int), "choices are written as int");

static const key *find_key(const char *name) {
    for (size_t i = 0; i < N_KEYS; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

static void *field_of(ductile_options *o, const key *k) {
    return (char *)o + k->offset;
}

static const void *const_field_of(const ductile_options *o, const key *k) {
    return (const char *)o + k->offset;
}

__attribute__((format(printf, 3, 4))) static ductile_status refuse(char *message, size_t size,
                                                                   const char *format, ...) {
    if (message != NULL && size > 0) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(message, size, format, args);
        va_end(args);
    }
    return DUCTILE_ERR_INVALID_ARGUMENT;
}

/* ---- Text in ------------------------------------------------------------------------------- */

static bool read_size(const char *text, uint64_t *out) {
    char *end = NULL;
    errno = 0;
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    uint64_t n = strtoull(text, &end, 10);
    static const char units[] = "KMGT";
    const char *unit = *end != '\0' ? strchr(units, toupper((unsigned char)*end)) : NULL;
    unsigned shift = 0;
    if (unit != NULL) {
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
    }
    if (errno != 0 || *end != '\0' || n > (UINT64_MAX >> shift)) {
        return false;
    }
    *out = n << shift;
    return true;
}

static bool parse_size(const key *k, const char *text, void *field) {
    (void)k;
    return read_size(text, field);
}

/* Bytes, or a share of what is limited: "80%". */
static bool parse_limit(const key *k, const char *text, void *field) {
    (void)k;
    uint64_t *out = field;
    char *end = NULL;
    double share = isdigit((unsigned char)text[0]) ? strtod(text, &end) / 100 : 0;
    if (end != NULL && strcmp(end, "%") == 0) {
        *out = share <= 1 ? DUCTILE_SHARE(share) : DUCTILE_SHARE_FLAG;
        return dpool_is_limit(*out);
    }
    uint64_t bytes = 0;
    if (!read_size(text, &bytes) || dpool_is_share(bytes)) {
        return false;
    }
    *out = bytes;
    return true;
}

static bool parse_int(const key *k, const char *text, void *field) {
    uint64_t n = 0;
    if (!read_size(text, &n) || n > (k->kind == &LEVEL ? MAX_CHECK : INT32_MAX)) {
        return false;
    }
    *(int *)field = (int)n;
    return true;
}

static bool parse_switch(const key *k, const char *text, void *field) {
    bool on = strcmp(text, "on") == 0;
    if (!on && strcmp(text, "off") != 0) {
        return false;
    }
    *(int *)field = on != (k->kind == &SWITCH_OFF);
    return true;
}

static bool parse_choice(const key *k, const char *text, void *field) {
    const choice *c = k->choices;
    while (c->name != NULL && strcmp(c->name, text) != 0) {
        c++;
    }
    if (c->name != NULL) {
        *(int *)field = c->value;
    }
    return c->name != NULL;
}

/* A word, or the largest handle in bytes. */
static bool parse_handles(const key *k, const char *text, void *field) {
    uint64_t *out = field;
    int word = 0;
    uint64_t bytes = 0;
    if (parse_choice(k, text, &word)) {
        *out = (uint64_t)word;
        return true;
    }
    if (!read_size(text, &bytes) || bytes == 0) {
        return false;
    }
    *out = bytes;
    return true;
}

/* "streams, stream, never, wait" */
static const char *list_choices(const choice *choices, char *text, size_t size) {
    size_t length = 0;
    for (; choices->name != NULL; choices++) {
        length += (size_t)snprintf(text + length, size - length, "%s%s", length > 0 ? ", " : "",
                                   choices->name);
    }
    return text;
}

/* ": did you mean tight?", or nothing. */
static const char *ask_if(const char *meant, char *text, size_t size) {
    text[0] = '\0';
    if (meant != NULL) {
        (void)snprintf(text, size, ": did you mean %s?", meant);
    }
    return text;
}

static const char *nearest_choice(const choice *choices, const char *text) {
    while (choices != NULL && choices->name != NULL && !dpool_is_near(text, choices->name)) {
        choices++;
    }
    return choices != NULL ? choices->name : NULL;
}

static const char *nearest_key(const char *name) {
    size_t i = 0;
    while (i < N_KEYS && !dpool_is_near(name, keys[i].name)) {
        i++;
    }
    return i < N_KEYS ? keys[i].name : NULL;
}

ductile_status ductile_options_set(ductile_options *o, const char *name, const char *value,
                                   char *message, size_t size) {
    if (o == NULL || name == NULL || value == NULL) {
        return refuse(message, size, "options, key and value must not be NULL");
    }
    const key *k = find_key(name);
    if (k == NULL) {
        char question[MAX_TOKEN];
        return refuse(message, size, "unknown option '%s'%s", name,
                      ask_if(nearest_key(name), question, sizeof question));
    }
    if (!k->kind->parse(k, value, field_of(o, k))) {
        char choices[MAX_TOKEN]; /* has room for all of any key */
        const char *wanted = k->kind->wanted != NULL
                                 ? k->kind->wanted
                                 : list_choices(k->choices, choices, sizeof choices);
        char question[MAX_TOKEN];
        const char *meant = nearest_choice(k->choices, value);
        return refuse(message, size, "option '%s' takes %s, not '%s'%s", name, wanted, value,
                      ask_if(meant, question, sizeof question));
    }
    return DUCTILE_OK;
}

/* Copies text up to `end`, without blanks around it. False when it does not fit. */
static bool copy_token(char *to, const char *text, const char *end) {
    while (text < end && isspace((unsigned char)*text)) {
        text++;
    }
    while (end > text && isspace((unsigned char)end[-1])) {
        end--;
    }
    size_t length = (size_t)(end - text);
    if (length >= MAX_TOKEN) {
        return false;
    }
    memcpy(to, text, length);
    to[length] = '\0';
    return true;
}

static ductile_status parse_pair(ductile_options *o, const char *text, const char *end,
                                 char *message, size_t size) {
    char name[MAX_TOKEN];
    char value[MAX_TOKEN];
    const char *separator = text + strcspn(text, ":=,");
    if (separator == end || !copy_token(name, text, separator) ||
        !copy_token(value, separator + 1, end)) {
        return refuse(message, size, "'%.*s' is not key:value, or key=value",
                      (int)dti_min((uint64_t)(end - text), 60), text);
    }
    return ductile_options_set(o, name, value, message, size);
}

ductile_status ductile_options_parse(ductile_options *o, const char *text, char *message,
                                     size_t size) {
    if (o == NULL || text == NULL) {
        return refuse(message, size, "options and text must not be NULL");
    }
    ductile_options changed = *o;
    while (*text != '\0') {
        const char *end = text + strcspn(text, ",");
        DTI_TRY(parse_pair(&changed, text, end, message, size));
        text = *end == ',' ? end + 1 : end;
    }
    *o = changed;
    return DUCTILE_OK;
}

/* ---- Limits -------------------------------------------------------------------------------- */

bool dpool_is_share(uint64_t limit) {
    return (limit & DUCTILE_SHARE_FLAG) != 0;
}

double dpool_share_of(uint64_t limit) {
    return (double)(limit & ~DUCTILE_SHARE_FLAG) / (double)((uint64_t)1 << 62);
}

bool dpool_is_limit(uint64_t limit) {
    double share = dpool_share_of(limit);
    return !dpool_is_share(limit) || (share > 0 && share <= 1);
}

/* ---- Text out ------------------------------------------------------------------------------ */

static const char *choice_name(const choice *choices, int value) {
    while (choices->name != NULL && choices->value != value) {
        choices++;
    }
    return choices->name != NULL ? choices->name : "?";
}

static int int_at(const void *field) {
    int value;
    memcpy(&value, field, sizeof value);
    return value;
}

static void format_number(const key *k, const void *field, char *text, size_t size) {
    (void)k;
    (void)snprintf(text, size, "%llu", (unsigned long long)*(const uint64_t *)field);
}

static void format_int(const key *k, const void *field, char *text, size_t size) {
    (void)k;
    (void)snprintf(text, size, "%d", int_at(field));
}

static void format_switch(const key *k, const void *field, char *text, size_t size) {
    bool is_on = (int_at(field) != 0) != (k->kind == &SWITCH_OFF);
    (void)snprintf(text, size, "%s", is_on ? "on" : "off");
}

static void format_choice(const key *k, const void *field, char *text, size_t size) {
    (void)snprintf(text, size, "%s", choice_name(k->choices, int_at(field)));
}

/* With as few digits as read back as the same share. */
static void format_limit(const key *k, const void *field, char *text, size_t size) {
    uint64_t limit = *(const uint64_t *)field;
    if (!dpool_is_share(limit)) {
        format_number(k, field, text, size);
        return;
    }
    double share = dpool_share_of(limit);
    for (int digits = 3; digits <= 17; digits++) {
        (void)snprintf(text, size, "%.*g%%", digits, share * 100);
        if (strtod(text, NULL) / 100 == share) {
            return;
        }
    }
}

static void format_handles(const key *k, const void *field, char *text, size_t size) {
    uint64_t value = *(const uint64_t *)field;
    if (value == 0) {
        (void)snprintf(text, size, "%s", choice_name(k->choices, (int)value));
    } else {
        format_number(k, field, text, size);
    }
}

/* ---- Kinds --------------------------------------------------------------------------------- */

static const kind SIZE = {parse_size, format_number, "a size such as 512M or 40G"};
static const kind LIMIT = {parse_limit, format_limit, "a size such as 40G, or a share such as 80%"};
static const kind HANDLES = {parse_handles, format_handles,
                             "auto, or the largest handle, such as 16M"};
static const kind NUMBER = {parse_int, format_int, "a number"};
static const kind LEVEL = {parse_int, format_int, "0, 1, 2 or 3"};
static const kind SWITCH = {parse_switch, format_switch, "on or off"};
static const kind SWITCH_OFF = {parse_switch, format_switch, "on or off"};
static const kind CHOICE = {parse_choice, format_choice, NULL};

size_t ductile_options_format(const ductile_options *o, char *buffer, size_t size) {
    size_t length = 0;
    if (size > 0) {
        buffer[0] = '\0';
    }
    for (size_t i = 0; i < N_KEYS; i++) {
        char value[MAX_TOKEN];
        keys[i].kind->format(&keys[i], const_field_of(o, &keys[i]), value, sizeof value);
        size_t at = length < size ? length : size;
        int n = snprintf(size > 0 ? buffer + at : NULL, size - at, "%s%s:%s", i > 0 ? "," : "",
                         keys[i].name, value);
        length += n > 0 ? (size_t)n : 0;
    }
    return length;
}

/* ---- Defaults and checks ------------------------------------------------------------------- */

static const ductile_options defaults = {
    .struct_size = sizeof(ductile_options),
    .address_budget_bytes = 64 * DTI_TIB,
};

void ductile_options_init(ductile_options *o) {
    *o = defaults;
}

static bool is_zero(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

/* A caller built with an older header gives fewer fields: the others keep their defaults. A newer
 * header may give more fields, as long as they are zero. */
static ductile_status take_given(const ductile_options *given, ductile_options *out, char *message,
                                 size_t size) {
    *out = defaults;
    if (given == NULL) {
        return DUCTILE_OK;
    }
    size_t theirs = given->struct_size;
    if (theirs < sizeof given->struct_size) {
        return refuse(message, size, "struct_size is not set: call ductile_options_init first");
    }
    if (theirs > sizeof *given &&
        !is_zero((const unsigned char *)given + sizeof *given, theirs - sizeof *given)) {
        (void)refuse(message, size, "an option is set that this version does not know");
        return DUCTILE_ERR_UNSUPPORTED;
    }
    memcpy(out, given, dti_min(theirs, sizeof *given));
    out->struct_size = sizeof *out;
    if (out->address_budget_bytes == 0) {
        out->address_budget_bytes = defaults.address_budget_bytes;
    }
    return DUCTILE_OK;
}

static bool is_choice(const choice *choices, int value) {
    return choice_name(choices, value)[0] != '?';
}

static ductile_status check_values(const ductile_options *o, char *message, size_t size) {
    for (size_t i = 0; i < N_KEYS; i++) {
        const key *k = &keys[i];
        if (k->kind == &CHOICE && !is_choice(k->choices, int_at(const_field_of(o, k)))) {
            return refuse(message, size, "option '%s' has no such value", k->name);
        }
    }
    for (size_t i = 0; i < N_KEYS; i++) {
        const uint64_t *limit = const_field_of(o, &keys[i]);
        if (keys[i].kind == &LIMIT && !dpool_is_limit(*limit)) {
            return refuse(message, size, "%s is no share: above 0, at most 1", keys[i].name);
        }
    }
    if (o->device < 0 || o->check < 0 || o->check > MAX_CHECK) {
        return refuse(message, size, "%s is out of range", o->device < 0 ? "device" : "check");
    }
    return DUCTILE_OK;
}

static ductile_status parse_environment(ductile_options *o, const char *text, char *message,
                                        size_t size) {
    int length = snprintf(message, size, VARIABLE ": ");
    ductile_status status = ductile_options_parse(o, text, message + length, size - (size_t)length);
    if (status == DUCTILE_OK) {
        message[0] = '\0';
    }
    return status;
}

ductile_status dpool_options_resolve(const ductile_options *given, ductile_options *out,
                                     char *message, size_t size) {
    ductile_status status = take_given(given, out, message, size);
    const char *environment = secure_getenv(VARIABLE);
    if (status == DUCTILE_OK && environment != NULL) {
        status = parse_environment(out, environment, message, size);
    }
    if (status == DUCTILE_OK) {
        status = check_values(out, message, size);
    }
    return status;
}

void dpool_name_environment(char *message, size_t size) {
    const char *environment = secure_getenv(VARIABLE);
    size_t length = strlen(message);
    if (environment != NULL && *environment != '\0' && strstr(message, VARIABLE) == NULL) {
        (void)snprintf(message + length, size - length, " (" VARIABLE ": %.120s)", environment);
    }
}

/* ---- Asking for them ------------------------------------------------------------------------ */

#define STRINGIFY(x) #x
#define TEXT_OF(x) STRINGIFY(x)

const char *ductile_version(void) {
    return TEXT_OF(DUCTILE_VERSION_MAJOR) "." TEXT_OF(DUCTILE_VERSION_MINOR) "." TEXT_OF(
        DUCTILE_VERSION_PATCH);
}

void ductile_get_options(ductile_allocator *a, ductile_options *out) {
    size_t size = out->struct_size < sizeof *out ? out->struct_size : sizeof *out;
    if (dvmm_usable(a->driver) == DUCTILE_ERR_FORKED) {
        memset(out, 0, size); /* the thread that held the lock is not in this process */
        out->struct_size = size;
        return;
    }
    dti_lock_acquire(&a->index_lock);
    ductile_options now = a->options;
    dti_lock_release(&a->index_lock);
    now.struct_size = size;
    now.captures = (ductile_captures)atomic_load_explicit(&a->captures, memory_order_relaxed);
    memcpy(out, &now, size);
}
