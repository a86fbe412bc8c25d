/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/blocks/block.h"

void dpool_list_append(dpool_list *list, dpool_block *b) {
    b->list_prev = list->last;
    b->list_next = NULL;
    if (list->last != NULL) {
        list->last->list_next = b;
    } else {
        list->first = b;
    }
    list->last = b;
    list->count++;
}

void dpool_list_remove(dpool_list *list, dpool_block *b) {
    if (b->list_prev != NULL) {
        b->list_prev->list_next = b->list_next;
    } else {
        list->first = b->list_next;
    }
    if (b->list_next != NULL) {
        b->list_next->list_prev = b->list_prev;
    } else {
        list->last = b->list_prev;
    }
    list->count--;
}

void dpool_list_insert_by_age(dpool_list *list, dpool_block *b) {
    dpool_block *before = list->last;
    while (before != NULL && before->age > b->age) {
        before = before->list_prev;
    }
    dpool_block *after = before != NULL ? before->list_next : list->first;
    b->list_prev = before;
    b->list_next = after;
    *(before != NULL ? &before->list_next : &list->first) = b;
    *(after != NULL ? &after->list_prev : &list->last) = b;
    list->count++;
}
