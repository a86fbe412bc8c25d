/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/words.h"

#include "tests/support/complain.h"
#include "tests/support/script.h"

#include <stdio.h>
#include <string.h>

/* ---- Words --------------------------------------------------------------------------------- */

bool has_word(const words *w, const char *word) {
    for (size_t i = 1; i < w->n; i++) {
        if (strcmp(w->at[i], word) == 0) {
            return true;
        }
    }
    return false;
}

const char *word_at(const words *w, size_t i) {
    return i < w->n ? w->at[i] : "";
}

const char *number_at(const words *w, size_t i, uint64_t *out) {
    NEED(script_number(word_at(w, i), out), "word %zu is no number", i);
    return NULL;
}

static const char *split(words *w, const char *operation) {
    char *rest = NULL;
    *w = (words){0};
    NEED(strlen(operation) < sizeof w->text, "an operation that is too long");
    (void)snprintf(w->text, sizeof w->text, "%s", operation);
    for (char *word = strtok_r(w->text, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        if (strcmp(word, "->") == 0) {
            w->status = strtok_r(NULL, " ", &rest);
            NEED(w->status != NULL, "no status behind ->");
            return NULL;
        }
        NEED(w->n < MOST_WORDS, "too many words");
        w->at[w->n++] = word;
    }
    return NULL;
}

const char *words_read(words *w, const char *operation) {
    TRY(split(w, operation));
    if (w->n > 2 && strcmp(w->at[1], "=") == 0) {
        w->target = w->at[0];
        w->n -= 2;
        memmove(w->at, w->at + 2, w->n * sizeof *w->at);
    }
    return NULL;
}

/* ---- Names --------------------------------------------------------------------------------- */

const named *names_find(const names *all, const char *name) {
    for (size_t i = all->n; i > 0; i--) {
        if (strcmp(all->all[i - 1].name, name) == 0) {
            return &all->all[i - 1];
        }
    }
    return NULL;
}

const char *names_set(names *all, const char *name, uint64_t value) {
    NEED(strlen(name) < WORD_BYTES, "a name that is too long");
    const named *known = names_find(all, name);
    size_t i = known != NULL ? (size_t)(known - all->all) : all->n;
    NEED(i < MOST_NAMES, "too many names");
    all->n += known == NULL;
    (void)snprintf(all->all[i].name, WORD_BYTES, "%s", name);
    all->all[i].value = value;
    return NULL;
}

/* A name, a number, or a product of these. */
static const char *term_of(const names *all, const char *text, size_t length, uint64_t *out) {
    char term[2 * WORD_BYTES];
    char *rest = NULL;
    NEED(length < sizeof term, "a word that is too long");
    (void)snprintf(term, sizeof term, "%.*s", (int)length, text);
    *out = 1;
    NEED(length > 0, "a value is missing");
    for (char *each = strtok_r(term, "*", &rest); each != NULL; each = strtok_r(NULL, "*", &rest)) {
        uint64_t factor = 0;
        const named *it = names_find(all, each);
        NEED(it != NULL || script_number(each, &factor), "neither a name nor a number: %s", each);
        *out *= it != NULL ? it->value : factor;
    }
    return NULL;
}

const char *names_value(const names *all, const char *text, uint64_t *out) {
    *out = 0;
    for (char sign = '+'; sign != '\0';) {
        uint64_t term = 0;
        size_t length = strcspn(text, "+-");
        TRY(term_of(all, text, length, &term));
        *out = sign == '+' ? *out + term : *out - term;
        sign = text[length];
        text += length + 1;
    }
    return NULL;
}

bool words_field_of(const void *at, const words_field *fields, size_t n, const char *name,
                    uint64_t *out) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(fields[i].name, name) == 0) {
            memcpy(out, (const char *)at + fields[i].offset, sizeof *out);
            return true;
        }
    }
    return false;
}

bool words_compare(uint64_t a, const char *how, uint64_t b) {
    return strcmp(how, "=") == 0    ? a == b
           : strcmp(how, "!=") == 0 ? a != b
           : strcmp(how, "<") == 0  ? a < b
           : strcmp(how, "<=") == 0 ? a <= b
           : strcmp(how, ">") == 0  ? a > b
           : strcmp(how, ">=") == 0 ? a >= b
                                    : false;
}
