/* SPDX-License-Identifier: Apache-2.0 */
/* What is freed first and joined later. */
#include "tests/model/subject.h"

const char *owe(subject *s, size_t slot, size_t user) {
    debt *d = &s->debts[s->n_debts];
    d->slot = slot;
    NEED_OK(ductile_virtual_stream_create(s->f.gpu, &d->of));
    TRY(follow(s, d->of, user));
    s->n_debts++;
    return NULL;
}

bool is_in_debt(const subject *s, size_t slot) {
    for (size_t i = 0; i < s->n_debts; i++) {
        if (s->debts[i].slot == slot) {
            return true;
        }
    }
    return false;
}

static const char *end_debt(subject *s, size_t i) {
    ductile_stream of = s->debts[i].of;
    s->debts[i] = s->debts[--s->n_debts];
    NEED_OK(ductile_virtual_stream_destroy(s->f.gpu, of));
    return NULL;
}

const char *pay(subject *s, size_t slot) {
    for (size_t i = s->n_debts; i-- > 0;) {
        if (s->debts[i].slot == slot) {
            TRY(wait_for(s, slot, s->debts[i].of));
            TRY(end_debt(s, i));
        }
    }
    return NULL;
}

const char *forgive(subject *s, size_t slot) {
    for (size_t i = s->n_debts; i-- > 0;) {
        TRY(s->debts[i].slot == slot ? end_debt(s, i) : NULL);
    }
    return NULL;
}

const char *forgive_all(subject *s) {
    while (s->n_debts > 0) {
        NEED_OK(ductile_virtual_stream_sync(s->f.gpu, s->debts[s->n_debts - 1].of));
        TRY(end_debt(s, s->n_debts - 1));
    }
    return NULL;
}

bool rests(const subject *s, size_t slot) {
    return is_in_debt(s, slot) && s->step < s->slots[slot].rests_until;
}

/* Earlier than it must. */
const char *do_pay(subject *s, const record *r) {
    if (s->n_debts == 0) {
        return NULL;
    }
    size_t i = r->d % s->n_debts;
    size_t slot = s->debts[i].slot;
    if (is_captured(s, slot) || r->a % 2 != 0) {
        return NULL;
    }
    say(s, "%zu waits for what it owes", slot);
    return pay(s, slot);
}
