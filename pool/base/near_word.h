/* SPDX-License-Identifier: Apache-2.0 */
/* Which of some words may have been meant by one that is none of them. */
#ifndef POOL_BASE_NEAR_WORD_H
#define POOL_BASE_NEAR_WORD_H

#include <stdbool.h>

/* Does `word` begin with `text`, or differ from it by few letters? Words of up to 63; quadratic. */
bool dpool_is_near(const char *text, const char *word);

#endif
