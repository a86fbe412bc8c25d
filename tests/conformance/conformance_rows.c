/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all rows, as it is written in rows.txt, and how one is run. */
#include "tests/conformance/conformance_session.h"
#include "tests/support/complain.h"
#include "tests/support/script.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_ROWS = 400, MOST_SUBS = 60, MOST_DIFFERENCES = 20 };

typedef struct named_text {
    const char *name, *text;
} named_text;

/* Read once; the text is cut into strings. */
static struct {
    conformance_row rows[MOST_ROWS];
    named_text subs[MOST_SUBS], differences[MOST_DIFFERENCES];
    size_t n_rows, n_subs, n_differences;
} table;

void session_refuse(const char *why, const char *where) {
    (void)fprintf(stderr, "%s: %s: %s\n", CONFORMANCE_ROWS, where, why);
    (void)fflush(NULL);
    _exit(2);
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* Cuts the text at the separator; what is behind it, or "". */
static char *cut(char *text, const char *separator) {
    char *at = strstr(text, separator);
    if (at == NULL) {
        return text + strlen(text);
    }
    *at = '\0';
    return at + strlen(separator);
}

static void add_row(conformance_row row) {
    if (table.n_rows + 1 >= MOST_ROWS) {
        session_refuse("too many rows", row.name);
    }
    table.rows[table.n_rows++] = row;
}

static const char *text_of(const char *format, const char *a, const char *b) {
    char *text = NULL;
    if (asprintf(&text, format, a, b) < 0) {
        session_refuse("no host memory", a);
    }
    return text;
}

static void add_captured(const char *call, const char *operations) {
    static const char *const modes[] = {"global", "thread", "relaxed"};
    for (int mode = 0; mode < 3; mode++) {
        add_row(
            (conformance_row){text_of("capture.%s.%s", modes[mode], call),
                              text_of("%s while a stream is captured, %s mode", call, modes[mode]),
                              operations, 0, mode});
    }
}

static void add_named(named_text *list, size_t *n, size_t most, char *name, const char *text) {
    if (*n == most) {
        session_refuse("too many of them", name);
    }
    list[(*n)++] = (named_text){name, text};
}

/* One entry: its first line, and the lines below it. */
static void read_entry(char *head) {
    char *lines = cut(head, "\n");
    if (strncmp(head, "sub ", 4) == 0) {
        add_named(table.subs, &table.n_subs, MOST_SUBS, head + 4, lines);
    } else if (strncmp(head, "differs ", 8) == 0) {
        char *why = cut(head + 8, " ");
        add_named(table.differences, &table.n_differences, MOST_DIFFERENCES, head + 8, why);
    } else if (strncmp(head, "captured ", 9) == 0) {
        char *operations = cut(head + 9, " | ");
        add_captured(head + 9, operations);
    } else {
        char *what = cut(head, " | ");
        char *flags = cut(what, " | ");
        add_row((conformance_row){head, what, lines, strcmp(flags, "alone") == 0 ? ROW_ALONE : 0,
                                  NO_CAPTURE});
    }
}

/* An entry goes to the next line that is not indented; comments and empty lines are none. */
static void read_once(void) {
    char *text = NULL;
    if (table.n_rows > 0) {
        return;
    }
    const char *why = script_text(CONFORMANCE_ROWS, &text);
    if (why != NULL) {
        session_refuse(why, "rows");
    }
    char *entry = NULL;
    for (char *line = text; *line != '\0'; line = line + strcspn(line, "\n") + 1) {
        bool begins = line[0] != ' ';
        if (begins && line > text) {
            line[-1] = '\0';
        }
        if (begins && entry != NULL) {
            read_entry(entry);
        }
        entry = !begins ? entry : line[0] == '#' || line[0] == '\n' ? NULL : line;
    }
    if (entry != NULL) {
        read_entry(entry);
    }
}

const conformance_row *conformance_row_at(size_t index) {
    read_once();
    return index < table.n_rows ? &table.rows[index] : NULL;
}

const char *conformance_why_different(const char *row_name) {
    read_once();
    for (size_t i = 0; i < table.n_differences; i++) {
        if (fnmatch(table.differences[i].name, row_name, 0) == 0) {
            return table.differences[i].text;
        }
    }
    return NULL;
}

const char *session_find_sub(const char *name) {
    for (size_t i = 0; i < table.n_subs; i++) {
        if (strcmp(table.subs[i].name, name) == 0) {
            return table.subs[i].text;
        }
    }
    return NULL;
}

/* ---- Running ------------------------------------------------------------------------------- */

/* With what is meant in place of $1 and the others. */
static void copy_line(char *to, const char *line, size_t n, const words *arguments) {
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (used + WORD_BYTES >= SESSION_LINE) {
            session_refuse("a line that is too long", line);
        }
        bool is_argument = arguments != NULL && line[i] == '$' && i + 1 < n;
        if (is_argument) {
            const char *word = word_at(arguments, (size_t)(line[++i] - '0'));
            used += (size_t)snprintf(to + used, SESSION_LINE - used, "%s", word);
        } else {
            to[used++] = line[i] == '\\' || line[i] == '\n' ? ' ' : line[i];
        }
    }
    to[used] = '\0';
}

static void run_operation(session *s, const char *operation) {
    words w;
    const char *why = words_read(&w, operation);
    if (why != NULL) {
        session_refuse(why, operation);
    }
    const char *sub = w.n > 0 ? session_find_sub(w.at[0]) : NULL;
    if (sub != NULL) {
        session_run_text(s, sub, &w);
    } else if (w.n > 0) {
        session_make_call(s, &w);
    }
}

/* "a = CALL then OPERATION then OPERATION" */
static void run_chain(session *s, char *operations) {
    char *next = cut(operations, " then ");
    run_operation(s, operations);
    bool is_over = s->code != DVMM_SUCCESS;
    while (*next != '\0' && !is_over) {
        char *operation = next;
        next = cut(operation, " then ");
        run_operation(s, operation);
    }
}

typedef struct session_line {
    session *s;
    char *operations;
} session_line;

static void run_line(void *argument) {
    const session_line *line = argument;
    char *rest = NULL;
    for (char *each = strtok_r(line->operations, ";", &rest); each != NULL;
         each = strtok_r(NULL, ";", &rest)) {
        run_chain(line->s, each);
    }
}

/* To its end; one whose last character is a backslash goes on. */
static size_t length_of_line(const char *line) {
    size_t n = strcspn(line, "\n");
    while (n > 0 && line[n] == '\n' && line[n - 1] == '\\') {
        n += 1 + strcspn(line + n + 1, "\n");
    }
    return n;
}

void session_run_text(session *s, const char *text, const words *arguments) {
    static const char thread[] = "thread:";
    for (size_t n = 0; *text != '\0'; text += n + (text[n] == '\n')) {
        char copy[SESSION_LINE];
        n = length_of_line(text);
        copy_line(copy, text, n, arguments);
        char *operations = copy + strspn(copy, " ");
        if (strncmp(operations, thread, strlen(thread)) == 0) {
            on_other_thread(s, run_line, &(session_line){s, operations + strlen(thread)});
        } else {
            run_line(&(session_line){s, operations});
        }
    }
}

/* ---- One call in one capture --------------------------------------------------------------- */

typedef struct attempt {
    session *s;
    const conformance_row *row;
    bool relaxed; /* the calling thread exchanges its mode around the call */
} attempt;

static void make_attempt(void *argument) {
    const attempt *a = argument;
    session *s = a->s;
    dvmm_capture_mode mode = DVMM_CAPTURE_RELAXED;
    if (a->relaxed) {
        need(s, "exchange", CALL(s, capture_exchange_mode, &mode));
    }
    s->is_quiet = true;
    session_run_text(s, a->row->operations, NULL);
    s->is_quiet = false;
    if (a->relaxed) {
        need(s, "exchange", CALL(s, capture_exchange_mode, &mode));
    }
}

static void attempt_in_capture(session *s, const conformance_row *row, bool is_other,
                               bool relaxed) {
    attempt a = {s, row, relaxed};
    session_run_text(s, session_find_sub("kit"), NULL);
    ductile_stream captured = (ductile_stream)(uintptr_t)names_find(&s->names, "captured")->value;
    need(s, "begin", BENCH_CALL(s, capture_begin, captured, (dvmm_capture_mode)row->mode));
    if (is_other) {
        on_other_thread(s, make_attempt, &a);
    } else {
        make_attempt(&a);
    }
    say(s, s->code);
    const char *word = capture_word(s, captured);
    note(s, "%s/%d", word, BENCH_CALL(s, capture_end, captured));
}

void session_run_row(session *s, const conformance_row *row) {
    for (int i = 0; i < 4 && row->mode != NO_CAPTURE; i++) {
        attempt_in_capture(s, row, i >= 2, i % 2 != 0);
    }
    if (row->mode == NO_CAPTURE) {
        session_run_text(s, row->operations, NULL);
    }
}
