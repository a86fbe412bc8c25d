/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter's functions. They are looked up at run time: one library serves every Python. */
#ifndef DUCTILE_RECORDING_INTERPRETER_H
#define DUCTILE_RECORDING_INTERPRETER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct interpreter {
    int (*is_alive)(void);           /* Py_IsInitialized */
    int (*is_ending)(void);          /* Py_IsFinalizing, under one name or the other; may be NULL */
    void *(*own_state)(void);        /* PyGILState_GetThisThreadState: needs no lock */
    int (*lock)(void);               /* PyGILState_Ensure */
    void (*unlock)(int before);      /* PyGILState_Release */
    void *(*current)(void);          /* PyEval_GetFrame: borrowed */
    void *(*back)(void *frame);      /* PyFrame_GetBack: owned */
    void *(*code)(void *frame);      /* PyFrame_GetCode: owned */
    int (*instruction)(void *frame); /* PyFrame_GetLasti, from 3.11 on; before, the line */
    int (*line)(void *frame);        /* PyFrame_GetLineNumber */
    void (*keep)(void *object);      /* Py_IncRef */
    void (*drop)(void *object);      /* Py_DecRef */
    void *(*attribute)(void *object, const char *name);
    const char *(*text)(void *object, intptr_t *length); /* PyUnicode_AsUTF8AndSize */
    void (*fetch)(void **type, void **value, void **trace);
    void (*restore)(void *type, void *value, void *trace);
    int (*stop_collector)(void);  /* PyGC_Disable, from 3.10 on: returns what it was; may be NULL */
    int (*start_collector)(void); /* PyGC_Enable */
} interpreter;

extern interpreter python;

/* False: this process has no Python. What threads may be calling is not written again. */
bool interpreter_find(void);

#endif
