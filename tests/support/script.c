/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/script.h"

#include "tests/support/command.h"
#include "tests/support/complain.h"
#include "tests/support/fixture_virtual.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 20, ALL_SCHEDULES = 15 };

bool script_number(const char *text, uint64_t *out) {
    char *end = NULL;
    *out = strtoull(text, &end, 10);
    const char *units = "KMGTPE";
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL) {
        *out <<= 10 * (unit - units + 1);
        end++;
    }
    return isdigit((unsigned char)text[0]) && *end == '\0';
}

const char *script_text(const char *path, char **out) {
    FILE *f = fopen(path, "rb");
    NEED(f != NULL, "%s cannot be read", path);
    char *text = calloc(1, MOST_BYTES);
    size_t n = text != NULL ? fread(text, 1, MOST_BYTES, f) : MOST_BYTES;
    (void)fclose(f);
    *out = text;
    NEED(n < MOST_BYTES, "%s is too long", path);
    return NULL;
}

static const char *add_conf(scenario *s, const char *more) {
    size_t n = strlen(s->conf);
    int length = snprintf(s->conf + n, sizeof s->conf - n, "%s%s", n > 0 ? "," : "", more);
    NEED(length > 0 && (size_t)length < sizeof s->conf - n, "too many options");
    return NULL;
}

static const char *read_schedules(scenario *s, const char *names) {
    s->schedules = 0;
    for (unsigned i = 0; i < 4; i++) {
        s->schedules |= strstr(names, schedule_names[i]) != NULL ? 1u << i : 0;
    }
    NEED(s->schedules != 0, "no schedule is named %s", names);
    return NULL;
}

/* What stands behind the word of a line; NULL: the line does not begin with it. */
static const char *after(const char *line, const char *word) {
    size_t n = strlen(word);
    bool begins = strncmp(line, word, n) == 0 && line[n] == ' ';
    return begins ? line + n + strspn(line + n, " ") : NULL;
}

static const char *read_setting(scenario *s, const char *line, bool *is_read) {
    const char *rest = NULL;
    *is_read = true;
    if ((rest = after(line, "with")) != NULL) {
        return add_conf(s, rest);
    }
    if ((rest = after(line, "schedules")) != NULL) {
        return read_schedules(s, rest);
    }
    if ((rest = after(line, "driver")) != NULL) {
        s->has_old_driver = true;
        return strcmp(rest, "old") == 0 ? NULL : complain("the driver can only be old");
    }
    if ((rest = after(line, "callback")) != NULL) {
        s->has_listener |= strcmp(rest, "maps") == 0;
        s->has_giver |= strcmp(rest, "memory") == 0;
        return s->has_listener || s->has_giver ? NULL : complain("no callback is called %s", rest);
    }
    const struct {
        const char *word;
        uint64_t *value;
    } numbers[] = {{"device", &s->capacity_bytes}, {"lag", &s->lag}, {"threads", &s->n_threads}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if ((rest = after(line, numbers[i].word)) != NULL) {
            return script_number(rest, numbers[i].value) ? NULL : complain("no number: %s", rest);
        }
    }
    *is_read = false;
    return NULL;
}

static const char *read_line(script *s, scenario *usual, const char *line, unsigned number) {
    bool is_read = true;
    scenario *now = s->n > 0 ? &s->all[s->n - 1] : usual;
    const char *name = after(line, "scenario");
    if (line[0] == '\0' || line[0] == '#') {
        return NULL;
    }
    if (name != NULL) {
        s->all[s->n] = *usual;
        s->all[s->n++].name = name;
        return NULL;
    }
    TRY(read_setting(now, line, &is_read));
    if (is_read) {
        return NULL;
    }
    NEED(s->n > 0, "an operation before the first scenario");
    NEED(now->n_lines < SCRIPT_LINES, "a scenario with too many lines");
    now->numbers[now->n_lines] = number;
    now->lines[now->n_lines++] = line;
    return NULL;
}

static size_t count_lines(const char *text) {
    size_t n = 1;
    for (; *text != '\0'; text++) {
        n += *text == '\n';
    }
    return n;
}

/* The end of the line, or NULL. One that ends with a backslash goes on; *n: how many it is. */
static char *end_of_line(char *line, unsigned *n) {
    char *end = strchr(line, '\n');
    for (*n = 1; end != NULL && end > line && end[-1] == '\\'; ++*n) {
        end[-1] = *end = ' ';
        end = strchr(end, '\n');
    }
    return end;
}

const char *script_read(script *s, const char *path) {
    scenario usual = {.capacity_bytes = 256 * MIB, .lag = 150, .schedules = ALL_SCHEDULES};
    *s = (script){0};
    TRY(script_text(path, &s->text));
    s->all = calloc(count_lines(s->text), sizeof *s->all);
    NEED(s->all != NULL, "no host memory for the test");
    unsigned number = 1;
    unsigned n = 0;
    for (char *line = s->text; line != NULL; number += n) {
        char *end = end_of_line(line, &n);
        if (end != NULL) {
            *end++ = '\0';
        }
        line += strspn(line, " ");
        const char *why = read_line(s, &usual, line, number);
        NEED(why == NULL, "%s:%u: %s", path, number, why);
        line = end;
    }
    return NULL;
}
