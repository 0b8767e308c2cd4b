/* A growing set of small numbers, one bit each. */
#ifndef ID_SET_H
#define ID_SET_H

#include "http1.h"

struct id_set {
    unsigned char *bits;
    size_t size; /* bytes */
};

static inline void id_set_reserve(struct id_set *s, size_t size)
{
    s->bits = must_have(realloc(s->bits, size));
    memset(s->bits + s->size, 0, size - s->size);
    s->size = size;
}

/* Add `id`; true when it is new. */
static inline bool id_set_add(struct id_set *s, size_t id)
{
    if (id / 8 >= s->size)
        id_set_reserve(s, id / 4 + 4096);
    unsigned char bit = 1 << id % 8;
    bool is_new = !(s->bits[id / 8] & bit);
    s->bits[id / 8] |= bit;
    return is_new;
}

#endif
