/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/base/near_word.h"

#include <string.h>

enum { MAX_LETTERS = 63, FEWEST_OF_A_BEGINNING = 3, LETTERS_A_MISTAKE = 3 };

static unsigned least(unsigned a, unsigned b, unsigned c) {
    unsigned less = a < b ? a : b;
    return less < c ? less : c;
}

/* How many letters are to be put in, taken out or exchanged to get from one to the other. */
static unsigned letters_apart(const char *text, const char *word, size_t n_word) {
    unsigned row[MAX_LETTERS + 1];
    for (size_t j = 0; j <= n_word; j++) {
        row[j] = (unsigned)j;
    }
    for (size_t i = 0; text[i] != '\0'; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i + 1;
        for (size_t j = 0; j < n_word; j++) {
            unsigned exchanged = diagonal + (text[i] != word[j]);
            diagonal = row[j + 1];
            row[j + 1] = least(exchanged, row[j] + 1, row[j + 1] + 1);
        }
    }
    return row[n_word];
}

bool dpool_is_near(const char *text, const char *word) {
    size_t n_text = strlen(text);
    size_t n_word = strlen(word);
    if (n_text > MAX_LETTERS || n_word > MAX_LETTERS) {
        return false;
    }
    bool begins_it = n_text >= FEWEST_OF_A_BEGINNING && strncmp(text, word, n_text) == 0;
    return begins_it || letters_apart(text, word, n_word) <= (n_word + 1) / LETTERS_A_MISTAKE;
}
