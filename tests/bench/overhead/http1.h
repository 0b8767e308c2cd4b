/* What the mock engine and the load generator share: a clock, a growing buffer
 * and just enough HTTP/1.1 to take messages off a socket. Both ends of the
 * bench are ours, so this parser is short and trusts its input; the proxies
 * under test bring the strict ones. */
#ifndef HTTP1_H
#define HTTP1_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_HEAD = 65536, START_LINE = 256 };

struct buffer {
    char *data;
    size_t used, size;
};

/* The parts of a message in the order in which they arrive. */
enum part { HEAD, PLAIN, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, COMPLETE };

struct message {
    enum part part;
    size_t left;             /* bytes missing of the body or of the chunk */
    char start[START_LINE];  /* request line or status line */
    bool close;              /* the sender asked for `connection: close` */
    bool broken;             /* not HTTP as this parser knows it */
    struct buffer body;      /* the body without its chunk framing */
};

static inline int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void *must_have(void *memory)
{
    if (!memory) {
        perror("out of memory");
        exit(3);
    }
    return memory;
}

/* Make room for at least `extra` more bytes. */
static inline void buffer_reserve(struct buffer *b, size_t extra)
{
    if (b->size - b->used >= extra)
        return;
    b->size = (b->used + extra) * 2;
    b->data = must_have(realloc(b->data, b->size));
}

static inline void buffer_append(struct buffer *b, const char *data, size_t n)
{
    buffer_reserve(b, n);
    memcpy(b->data + b->used, data, n);
    b->used += n;
}

/* Forget the first `n` bytes. */
static inline void buffer_drop(struct buffer *b, size_t n)
{
    if (n && b->used > n)
        memmove(b->data, b->data + n, b->used - n);
    b->used -= n;
}

/* The value of a header inside a head of `n` bytes, or NULL. */
static inline const char *header_value(const char *head, size_t n, const char *name)
{
    size_t length = strlen(name);
    const char *end = head + n;
    const char *line = head;
    while ((line = memchr(line, '\n', end - line))) {
        line++;
        if ((size_t)(end - line) <= length)
            return NULL;
        if (line[length] != ':' || strncasecmp(line, name, length))
            continue;
        line += length + 1;
        return line + strspn(line, " ");
    }
    return NULL;
}

static inline bool header_says(const char *head, size_t n, const char *name,
                               const char *value)
{
    const char *found = header_value(head, n, name);
    return found && !strncasecmp(found, value, strlen(value));
}

/* Get ready for the next message on the same connection. */
static inline void message_reset(struct message *m)
{
    m->part = HEAD;
    m->body.used = 0;
    m->close = m->broken = false;
}

static inline void read_head(struct message *m, const char *head, size_t n)
{
    size_t line = strcspn(head, "\r");
    if (line >= START_LINE)
        line = START_LINE - 1;
    memcpy(m->start, head, line);
    m->start[line] = 0;
    if (!strncmp(m->start, "HTTP/1.1 1", 10))
        return; /* an interim answer: the real head follows */
    m->close = header_says(head, n, "connection", "close");
    const char *size = header_value(head, n, "content-length");
    m->left = size ? strtoul(size, NULL, 10) : 0;
    if (header_says(head, n, "transfer-encoding", "chunked"))
        m->part = CHUNK_SIZE;
    else
        m->part = m->left ? PLAIN : COMPLETE;
}

/* Each take_* consumes from `data` and returns the bytes used, 0 for "more". */
static inline size_t take_head(struct message *m, const char *data, size_t n)
{
    const char *end = memmem(data, n < MAX_HEAD ? n : MAX_HEAD, "\r\n\r\n", 4);
    if (!end) {
        m->broken = n >= MAX_HEAD;
        return 0;
    }
    read_head(m, data, end + 4 - data);
    return end + 4 - data;
}

static inline size_t take_body(struct message *m, const char *data, size_t n)
{
    size_t take = n < m->left ? n : m->left;
    buffer_append(&m->body, data, take);
    m->left -= take;
    if (!m->left)
        m->part = m->part == PLAIN ? COMPLETE : CHUNK_END;
    return take;
}

static inline size_t take_line(struct message *m, const char *data, size_t n)
{
    const char *end = memmem(data, n, "\r\n", 2);
    if (!end)
        return 0;
    if (m->part == CHUNK_END) {
        m->part = CHUNK_SIZE;
    } else if (m->part == CHUNK_SIZE) {
        m->left = strtoul(data, NULL, 16);
        m->part = m->left ? CHUNK_DATA : TRAILER;
    } else if (end == data) {
        m->part = COMPLETE; /* the empty line after the trailers */
    }
    return end + 2 - data;
}

static inline size_t take_part(struct message *m, const char *data, size_t n)
{
    if (m->part == HEAD)
        return take_head(m, data, n);
    if (m->part == PLAIN || m->part == CHUNK_DATA)
        return take_body(m, data, n);
    return take_line(m, data, n);
}

/* Move what has arrived from `in` to the message; true once it is complete. */
static inline bool message_feed(struct message *m, struct buffer *in)
{
    size_t at = 0, used = 1;
    while (m->part != COMPLETE && at < in->used && used) {
        used = take_part(m, in->data + at, in->used - at);
        at += used;
    }
    buffer_drop(in, at);
    return m->part == COMPLETE;
}

#endif
